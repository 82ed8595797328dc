package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// testMemberSucceeds ends one of four members of a Job with success, while the others run. The scheduler's informer then has a deletion
// with the pod as it was before. Nothing holds its GPUs: a pod of the same priority gets them long before the 5 minutes for which the place
// of a lost member is held.
func (l *gangLab) testMemberSucceeds(t *testing.T) {
	const name = "kind-succeeds"
	l.leave(t, 0, 1, 2, 3)
	job := l.gangJob(name, false)
	job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64)
	jobs := l.Client().BatchV1().Jobs(metav1.NamespaceDefault)
	if _, err := jobs.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		foreground := metav1.DeletePropagationForeground
		if err := jobs.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
			t.Error(err)
		}
		if err := l.pollGone(ctx, name); err != nil {
			t.Error(err)
		}
	})
	member := l.waitPlaced(t, name, 4, completionIndex)["1"]
	waiting := l.template("beside-succeeds")
	waiting.Spec.TerminationGracePeriodSeconds = new(int64)
	pods := l.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(t.Context(), waiting, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.WithoutCancel(t.Context()), waiting.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if _, err := pods.Patch(t.Context(), member.Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitUntil(t, 30*time.Second, "the pod beside the gang gets the place of the member that has succeeded", func(ctx context.Context) error {
		pod, err := pods.Get(ctx, waiting.Name, metav1.GetOptions{})
		if err == nil && pod.Spec.NodeName != member.Spec.NodeName {
			err = fmt.Errorf("it is on %q, and the member was on %s: %v", pod.Spec.NodeName, member.Spec.NodeName, pod.Status.Conditions)
		}
		return err
	})
	t.Logf("it has the place after %v", time.Since(began).Round(time.Millisecond))
	list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + name})
	if err != nil {
		t.Fatal(err)
	}
	running := 0
	for i := range list.Items {
		if list.Items[i].Status.Phase == corev1.PodRunning && list.Items[i].DeletionTimestamp == nil {
			running++
		}
	}
	if running != 3 {
		t.Errorf("%d of %d members run; want the other 3", running, len(list.Items))
	}
}
