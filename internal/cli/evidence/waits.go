package evidence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/trace"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// latestEvents is how many events of a waiting pod are shown.
const latestEvents = 3

// addWaits adds why a pod does not run: its reason and conditions, what its containers wait for, and its latest events,
// newest first. It adds nothing for a pod that runs or has succeeded. If events may not be listed, it adds the rest.
func (a API) addWaits(ctx context.Context, e *trace.Evidence, pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != corev1.PodFailed {
		return
	}
	ref := trace.Ref{UID: podUID(pod), Namespace: pod.Namespace, Name: pod.Name}
	status := trace.Source{Kind: trace.PodStatus, Path: "pods/" + pod.Namespace + "/" + pod.Name + " conditions"}
	e.Read = append(e.Read, status)
	order := 0
	add := func(source trace.Source, name, text string) {
		order++
		e.Waits = append(e.Waits, trace.WaitFact{Source: source, Pod: ref, Order: order, Name: name, Text: text})
	}
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		add(status, string(pod.Status.Phase), join(pod.Status.Reason, pod.Status.Message))
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status != corev1.ConditionTrue && condition.Message != "" {
			add(status, fmt.Sprintf("%s=%s", condition.Type, condition.Status), join(condition.Reason, condition.Message))
		}
	}
	for _, container := range statuses(pod) {
		if waits := container.State.Waiting; waits != nil && waits.Reason != "PodInitializing" && waits.Reason != "ContainerCreating" {
			add(status, "container "+container.Name, join(waits.Reason, waits.Message))
		}
	}
	if pod.Status.Phase != corev1.PodPending {
		return
	}
	source := trace.Source{Kind: trace.Events, Path: "events of " + pod.Namespace + "/" + pod.Name}
	events, err := a.events(ctx, pod)
	if err != nil {
		why := err.Error()
		if apierrors.IsForbidden(err) {
			why += " (needs list on events in the namespace " + pod.Namespace + ")"
		}
		e.Unread = append(e.Unread, trace.Unread{Source: source, Why: why})
		return
	}
	e.Read = append(e.Read, source)
	for i := range events {
		text := events[i].Message
		if times := timesSeen(&events[i]); times > 1 {
			text += fmt.Sprintf(" (%d times)", times)
		}
		add(source, "event "+events[i].Reason, text)
	}
}

// events returns the latest events about a pod, newest first. The UID excludes those of an earlier pod with the same
// name.
func (a API) events(ctx context.Context, pod *corev1.Pod) ([]corev1.Event, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	list, err := a.Client.Resource(resource).Namespace(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)).String(), Limit: listLimit,
	})
	if err != nil {
		return nil, err
	}
	var events []corev1.Event
	for i := range list.Items {
		var event corev1.Event
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &event); err != nil {
			return nil, fmt.Errorf("read event %s: %w", list.Items[i].GetName(), err)
		}
		if event.InvolvedObject.UID == pod.UID {
			events = append(events, event)
		}
	}
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return lastSeen(&b).Compare(lastSeen(&a)) })
	return events[:min(len(events), latestEvents)], nil
}

// lastSeen returns when an event was last seen, and timesSeen how often: clients of the old and of the new events API
// write different fields.
func lastSeen(e *corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.EventTime.After(last) {
		last = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	return last
}

func timesSeen(e *corev1.Event) int32 {
	if e.Series != nil {
		return max(e.Count, e.Series.Count)
	}
	return e.Count
}

func join(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}
