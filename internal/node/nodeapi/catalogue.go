package nodeapi

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxEventNote is the API's limit of an event's note, in bytes.
const maxEventNote = 1024

// Event is a Kubernetes event about the node or a ResourceClaim. The functions of this file are all that there are.
type Event struct {
	kind   string
	reason string
	note   string
	// about is zero for the node.
	about claim
}

// claim identifies a ResourceClaim.
type claim struct {
	namespace string
	name      string
	uid       string
}

func event(kind, reason, note string) Event {
	if len(note) > maxEventNote {
		note = strings.ToValidUTF8(note[:maxEventNote-3], "") + "..."
	}
	return Event{kind: kind, reason: reason, note: note}
}

func normal(reason, note string) Event  { return event(corev1.EventTypeNormal, reason, note) }
func warning(reason, note string) Event { return event(corev1.EventTypeWarning, reason, note) }

// GPUHealthy reports that a device has recovered.
func GPUHealthy(device string) Event { return normal("GPUHealthy", device+" is healthy again") }

// GPUNotHealthy reports that the health of a device has changed to a state other than healthy, why, and who holds the
// device.
func GPUNotHealthy(device string, state gpu.State, cause string, holders []string) Event {
	note := fmt.Sprintf("%s is %s: %s", device, state, cmp.Or(cause, "it does not answer"))
	if len(holders) > 0 {
		note += "; held by " + strings.Join(holders, ", ")
	}
	return warning("GPU"+string(state), note)
}

// StateLost reports that a state file of the agent could not be used.
func StateLost(message string) Event { return warning("StateLost", message) }

// StateUnwritable reports that a state file of the agent cannot be written.
func StateUnwritable(message string) Event { return warning("StateUnwritable", message) }

// SharesOfOneGPU reports that a container was allocated several replicas of one GPU.
func SharesOfOneGPU(message string) Event { return warning("SharesOfOneGPU", message) }

// APIChosen reports which API was chosen for the GPUs with allocation.api auto, and why.
func APIChosen(api, why string) Event {
	return normal("AllocationAPIChosen", fmt.Sprintf("GPUs with allocation.api auto are allocated through %s: %s", api, why))
}

// ClaimNotPrepared reports on a ResourceClaim why it could not be prepared on this node.
func ClaimNotPrepared(namespace, name, uid, message string) Event {
	event := warning("ClaimNotPrepared", message)
	event.about = claim{namespace: namespace, name: name, uid: uid}
	return event
}

// ConditionChanged reports that a condition of the GPUNode has changed.
func ConditionChanged(kind string, status metav1.ConditionStatus, reason, message string) Event {
	if status == metav1.ConditionTrue {
		return normal(kind+reason, message)
	}
	return warning(kind+reason, message)
}
