package podwatch

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// validationValue is the value of the label of a validation pod of a node.
const validationValue = "node"

// Validation is what a validation pod says.
type Validation struct {
	// UID and Name are those of the pod.
	UID  string
	Name string
	// Key is what it validates, and Created when it was made.
	Key     string
	Created time.Time
	// Ended is true when it has ended, and Refused why the kubelet ended it without running all its containers; empty when it did run them.
	Ended   bool
	Refused string
	// Containers are those that have ended, by name.
	Containers []Result
	// Of is the number of its containers.
	Of int
}

// Result is a container that has ended.
type Result struct {
	Name string
	Exit int32
	// Message is its termination message.
	Message string
}

// validationOf returns the validation of a pod; nil unless the pod has the label and the key. The caller decides by the pod's namespace
// whether it is one of the operator: everybody can label a pod.
func validationOf(pod *corev1.Pod) *Validation {
	if pod.Labels[v1alpha1.ValidationLabel] != validationValue || pod.Annotations[v1alpha1.ValidationKeyAnnotation] == "" {
		return nil
	}
	v := &Validation{
		UID: string(pod.UID), Name: pod.Name, Key: pod.Annotations[v1alpha1.ValidationKeyAnnotation], Created: pod.CreationTimestamp.Time,
		Ended: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed, Of: len(pod.Spec.Containers),
	}
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		if t := status.State.Terminated; t != nil {
			v.Containers = append(v.Containers, Result{Name: status.Name, Exit: t.ExitCode, Message: t.Message})
		}
	}
	slices.SortFunc(v.Containers, func(a, b Result) int { return cmp.Compare(a.Name, b.Name) })
	if pod.Status.Phase == corev1.PodFailed && len(v.Containers) < v.Of {
		v.Refused = cmp.Or(pod.Status.Message, pod.Status.Reason, "the pod failed without a reason")
	}
	return v
}

// Validations returns the validation pods of the node, the oldest first, and whether they are known: they are not before the first
// response of the API server. Without a namespace of its own the agent has none.
func (w *Watch) Validations() (pods []Validation, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known = w.synced != nil && w.synced()
	for _, pod := range w.pods {
		if pod.Validation != nil && w.deps.Namespace != "" && pod.Namespace == w.deps.Namespace {
			pods = append(pods, *pod.Validation)
		}
	}
	slices.SortFunc(pods, func(a, b Validation) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	return pods, known
}

// SubscribePods signals a change of the node's pods, to any number of receivers.
func (w *Watch) SubscribePods() *signal.Subscription { return w.broadcast.Subscribe() }
