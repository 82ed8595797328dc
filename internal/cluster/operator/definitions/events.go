package definitions

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
)

// notice is what an Event about an object says.
type notice struct {
	about  *unstructured.Unstructured
	reason string
	action string
	note   string
}

// record sends it as an Event. All are warnings: others work against the operator.
func (n notice) record(to events.EventRecorder) {
	to.Eventf(n.about, nil, corev1.EventTypeWarning, n.reason, n.action, "%s", n.note)
}

// restored says that fields were edited by others, and that the edit was undone.
func restored(live *unstructured.Unstructured, fields []difference) notice {
	return notice{about: live, reason: "EditUndone", action: "Apply",
		note: fmt.Sprintf("%s differed from what this version of Berth has%s; berth-operator restored it. "+
			"It keeps this object: to change it, change the release of Berth", list(fields), by(live))}
}

// recreated says that an object was deleted, and exists again.
func recreated(created *unstructured.Unstructured) notice {
	return notice{about: created, reason: "DeletionUndone", action: "Apply",
		note: "it was deleted; berth-operator created it again. To remove it, uninstall Berth first"}
}

// foreign says that somebody else's DeviceClass has the name of one of Berth's.
func foreign(live *unstructured.Unstructured, fields []difference) notice {
	return notice{about: live, reason: "NameTaken", action: "Skip",
		note: fmt.Sprintf("Berth has a DeviceClass of this name, which differs in %s%s; berth-operator leaves this one alone. "+
			"Fix: delete it, and the operator creates Berth's; or create it under another name first", list(fields), by(live))}
}

// by names the last writer of an object.
func by(live *unstructured.Unstructured) string {
	if writer := lastWriter(live); writer != "" {
		return " (last written by " + writer + ")"
	}
	return ""
}
