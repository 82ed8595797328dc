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

// testMemberSucceeds ends one of four members with success, while the others run. The scheduler's informer then has a deletion with the pod
// as it was before. Nothing holds its GPUs: a pod of the same priority gets them long before the 5 minutes for which the place of a lost
// member is held, and the others go on. No Job owns the members: KWOK ends the pods of Jobs by itself.
func (l *gangLab) testMemberSucceeds(t *testing.T) {
	const name = "kind-succeeds"
	l.leave(t, 0, 1, 2, 3)
	pods := l.Client().CoreV1().Pods(metav1.NamespaceDefault)
	create := func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := pods.Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 4 {
		pod := l.template(fmt.Sprint(name, "-", i))
		pod.Labels = map[string]string{"berth.dev/pod-group": name, "berth.dev/min-member": "4"}
		create(pod)
	}
	// running returns the nodes of the members that run, by name.
	running := func(ctx context.Context) (map[string]string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + name})
		if err != nil {
			return nil, err
		}
		nodes := map[string]string{}
		for i := range list.Items {
			if pod := &list.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				nodes[pod.Name] = pod.Spec.NodeName
			}
		}
		return nodes, nil
	}
	var nodes map[string]string
	waitUntil(t, 30*time.Second, "the members run", func(ctx context.Context) (err error) {
		if nodes, err = running(ctx); err == nil && len(nodes) != 4 {
			err = fmt.Errorf("%d do", len(nodes))
		}
		return err
	})
	create(l.template("beside-succeeds"))
	if _, err := pods.Patch(t.Context(), name+"-1", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitUntil(t, 15*time.Second, "the pod beside the gang gets the place of the member that has succeeded", func(ctx context.Context) error {
		pod, err := pods.Get(ctx, "beside-succeeds", metav1.GetOptions{})
		if err == nil && pod.Spec.NodeName != nodes[name+"-1"] {
			err = fmt.Errorf("it is on %q, and the member was on %s: %v", pod.Spec.NodeName, nodes[name+"-1"], pod.Status.Conditions)
		}
		return err
	})
	t.Logf("it has the place after %v", time.Since(began).Round(time.Millisecond))
	// A gang that is bound in part is released after 20 s.
	for time.Since(began) < 23*time.Second {
		if left, err := running(t.Context()); err != nil || len(left) != 3 {
			t.Fatalf("%d members run after %v, %v; want the other 3", len(left), time.Since(began), err)
		}
		time.Sleep(time.Second)
	}
}
