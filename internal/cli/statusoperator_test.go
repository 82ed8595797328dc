package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubetesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// operatorPod is a pod of the operator with one container.
func operatorPod(name string, status corev1.ContainerStatus) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: name, Labels: map[string]string{"app.kubernetes.io/name": "berth-operator"}},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{status}}}
}

func fieldsOf(t *testing.T, object any) *unstructured.Unstructured {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: fields}
}

// refusal is what the kubelet keeps of an operator that refuses to run: the end of its log.
const refusal = "time=1 level=INFO msg=Starting\nberth-operator: CustomResourceDefinition gpunodes.berth.dev in the cluster has schema version 2\n"

func TestStopped(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: refusal}}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	const says = "it ended with exit code 1: berth-operator: CustomResourceDefinition gpunodes.berth.dev in the cluster has schema version 2"
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   string
	}{
		"works":               {corev1.ContainerStatus{Ready: true}, ""},
		"works again":         {corev1.ContainerStatus{Ready: true, RestartCount: 1, LastTerminationState: ended}, ""},
		"starts":              {corev1.ContainerStatus{State: waiting("ContainerCreating", "")}, ""},
		"runs, not ready yet": {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, ""},
		"ended":               {corev1.ContainerStatus{State: ended}, "after 0 restarts " + says},
		"waits after its end": {corev1.ContainerStatus{State: waiting("CrashLoopBackOff", "back-off"), LastTerminationState: ended, RestartCount: 3}, "after 3 restarts " + says},
		"starts after its end": {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: ended, RestartCount: 3},
			"after 3 restarts " + says},
		"killed": {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}},
			"after 0 restarts it ended with exit code 137: OOMKilled"},
		"no image":                 {corev1.ContainerStatus{State: waiting("ImagePullBackOff", "no such image")}, "ImagePullBackOff: no such image"},
		"no image, and no message": {corev1.ContainerStatus{State: waiting("ImagePullBackOff", "")}, "ImagePullBackOff"},
	} {
		if got := stopped(operatorPod("a", c.status)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	deleted := operatorPod("a", corev1.ContainerStatus{State: ended})
	deleted.DeletionTimestamp = &metav1.Time{}
	if got := stopped(deleted); got != "" {
		t.Errorf("a pod that is being deleted: %q", got)
	}
}

// TestStatusOperator checks the notes about the operator and the scheduler: one for each pod that does not work, and one for a user who
// may not read pods.
func TestStatusOperator(t *testing.T) {
	ended := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: refusal}}}
	other := operatorPod("other", ended)
	other.Labels = nil
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	scheduler := operatorPod("s", corev1.ContainerStatus{State: waiting})
	scheduler.Labels["app.kubernetes.io/name"] = "berth-scheduler"
	client := statusClient(gateNode("node-a", v1alpha1.GateStatus{State: v1alpha1.GateValidated}), fieldsOf(t, operatorPod("b", ended)),
		fieldsOf(t, other), fieldsOf(t, scheduler),
		fieldsOf(t, operatorPod("a", corev1.ContainerStatus{Ready: true})))
	notes := func() string {
		t.Helper()
		report, err := readStatus(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(report.Notes, "\n")
	}
	const want = "berth-operator: pod berth-system/b does not work: after 0 restarts it ended with exit code 1: berth-operator: CustomResourceDefinition gpunodes.berth.dev"
	if got := notes(); strings.Count(got, "berth-operator: pod") != 1 || !strings.Contains(got, want) {
		t.Errorf("the notes are\n%s\nwant %s", got, want)
	}
	if got, want := notes(), "berth-scheduler: pod berth-system/s does not work: ImagePullBackOff"; !strings.Contains(got, want) {
		t.Errorf("the notes are\n%s\nwant %s", got, want)
	}
	client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	})
	if got := notes(); !strings.Contains(got, "berth-operator and berth-scheduler: not shown, since this user may not read it: list pods: pods is forbidden") {
		t.Errorf("without the right to read pods the notes are\n%s", got)
	}
}
