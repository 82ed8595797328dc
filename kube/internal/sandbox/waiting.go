package sandbox

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// quietFor is how long a pod may wait before the reason is printed.
	quietFor = 2 * time.Second
	// lastEvents is how many of a pod's events are shown.
	lastEvents = 3
)

// WaitError reports that a pod did not reach a phase in time, with the reason.
type WaitError struct {
	Namespace string
	Name      string
	Phase     corev1.PodPhase
	Why       string
	Err       error
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("wait for pod %s/%s to be %s: %v; it is %s", e.Namespace, e.Name, e.Phase, e.Err, e.Why)
}

func (e *WaitError) Unwrap() error { return e.Err }

// WaitPhase waits until the pod is in the phase. It returns early if the pod has ended in another phase. Errors contain
// the reason why the pod waits.
func (c *Cluster) WaitPhase(ctx context.Context, ns, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	return c.waitPhase(ctx, io.Discard, ns, name, phase)
}

// waitPhase is WaitPhase. In addition it prints why the pod waits, when that takes longer than quietFor and whenever
// the reason changes.
func (c *Cluster) waitPhase(ctx context.Context, w io.Writer, ns, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	var pod *corev1.Pod
	said := ""
	for began := time.Now(); ; {
		got, err := c.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			pod = got
			if pod.Status.Phase == phase {
				return pod, nil
			}
			if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				return pod, fmt.Errorf("wait for pod %s/%s to be %s: it is %s", ns, name, phase, describePod(pod))
			}
			if why := describePod(pod); w != io.Discard && time.Since(began) >= quietFor && why != said {
				said = why
				fmt.Fprintf(w, "pod %s/%s is %s%s\n", ns, name, why, c.podEvents(pod))
			}
		}
		select {
		case <-ctx.Done():
			why := fmt.Sprint(err)
			if pod != nil {
				why = describePod(pod) + c.podEvents(pod)
			}
			return pod, &WaitError{Namespace: ns, Name: name, Phase: phase, Why: why, Err: context.Cause(ctx)}
		case <-time.After(poll):
		}
	}
}

// describePod returns a pod's phase with the reasons in its conditions and containers.
func describePod(pod *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprint(&b, pod.Status.Phase)
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		fmt.Fprintf(&b, " (%s: %s)", pod.Status.Reason, pod.Status.Message)
	}
	for _, cond := range pod.Status.Conditions {
		if cond.Status != corev1.ConditionTrue && cond.Message != "" {
			fmt.Fprintf(&b, "; %s=%s, %s: %s", cond.Type, cond.Status, cond.Reason, cond.Message)
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			fmt.Fprintf(&b, "; container %s waits: %s %s", s.Name, w.Reason, w.Message)
		}
		if t := s.State.Terminated; t != nil {
			fmt.Fprintf(&b, "; container %s ended: %s, exit code %d %s", s.Name, t.Reason, t.ExitCode, t.Message)
		}
	}
	return b.String()
}

// podEvents returns the last events about a pod, one per line, the latest last.
func (c *Cluster) podEvents(pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	list, err := c.client.CoreV1().Events(pod.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return "\n  events cannot be read: " + err.Error()
	}
	events := slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.UID != pod.UID })
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	events = events[max(0, len(events)-lastEvents):]
	var b strings.Builder
	for i := range events {
		fmt.Fprintf(&b, "\n  event %s: %s", events[i].Reason, events[i].Message)
	}
	return b.String()
}

// eventTime returns when an event was last seen; old and new clients write different fields.
func eventTime(e *corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.EventTime.After(last) {
		last = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	return last
}
