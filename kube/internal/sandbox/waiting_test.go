package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// pendingPod is a pod that fits no node, with more events than are shown.
func pendingPod() (*corev1.Pod, []corev1.Event) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "big", UID: "u1"},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."},
		}},
	}
	var events []corev1.Event
	for i := range lastEvents + 1 {
		events = append(events, corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("e", i)},
			InvolvedObject: corev1.ObjectReference{UID: "u1"}, Reason: "FailedScheduling", Message: fmt.Sprint("try ", i),
			LastTimestamp: metav1.Unix(int64(1000-i), 0),
		})
	}
	return pod, append(events, corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "other"},
		InvolvedObject: corev1.ObjectReference{UID: "u2"}, Reason: "Other", Message: "of another pod",
	})
}

// TestRunReportsWhyAPodWaits checks that the reason is printed once, after quietFor, and again with the error.
func TestRunReportsWhyAPodWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, events := pendingPod()
		client := fake.NewClientset(pod)
		for i := range events {
			if err := client.Tracker().Add(&events[i]); err != nil {
				t.Fatal(err)
			}
		}
		c := &Cluster{client: client}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("not done after 10s"))
		defer cancel()
		var out strings.Builder
		_, err := c.waitPhase(ctx, &out, "default", "big", corev1.PodRunning)
		want := `pod default/big is Pending; PodScheduled=False, Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.
  event FailedScheduling: try 2
  event FailedScheduling: try 1
  event FailedScheduling: try 0
`
		if out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
		var waited *WaitError
		if !errors.As(err, &waited) || !strings.Contains(err.Error(), "not done after 10s") ||
			!strings.Contains(err.Error(), "Insufficient nvidia.com/gpu") ||
			!strings.Contains(err.Error(), "event FailedScheduling") {
			t.Errorf("error %v", err)
		}
	})
}

// TestRunFollowsAPod checks that a new reason is printed, and nothing about a pod that soon runs.
func TestRunFollowsAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, _ := pendingPod()
		client := fake.NewClientset(pod)
		c := &Cluster{client: client}
		change := func(after time.Duration, phase corev1.PodPhase, status corev1.ContainerStatus) {
			go func() {
				time.Sleep(after)
				now := pod.DeepCopy()
				now.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{status}}
				if _, err := client.CoreV1().Pods("default").Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
			}()
		}
		change(5*time.Second, corev1.PodPending, corev1.ContainerStatus{Name: "main",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
				Message: "no such image"}}})
		change(8*time.Second, corev1.PodRunning, corev1.ContainerStatus{Name: "main"})
		var out strings.Builder
		if _, err := c.waitPhase(t.Context(), &out, "default", "big", corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
		if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 2 ||
			!strings.Contains(lines[1], "container main waits: ImagePullBackOff no such image") {
			t.Errorf("printed %q", lines)
		}
		var quick strings.Builder
		if _, err := c.waitPhase(t.Context(), &quick, "default", "big", corev1.PodRunning); err != nil || quick.String() != "" {
			t.Errorf("a pod that runs: %q, %v", quick.String(), err)
		}
	})
}
