package gangplan

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Group is what a PodGroup says.
type Group struct {
	UID     types.UID
	Created metav1.Time
	// Deleting is true from when its deletion was requested: it counts as one that does not exist.
	Deleting bool
	// Min is how many pods have to start together, at least 1 unless there is a Problem.
	Min int32
	// Problem says in one sentence why the PodGroup cannot be used, or is empty.
	Problem string

	annotations map[string]string
}

// ParseGroup reads a PodGroup of SchedulerPlugins or Volcano. It never fails: what cannot be used is its Problem, which Build reports. What
// it keeps shares no memory with the object.
func ParseGroup(source Source, object *unstructured.Unstructured) *Group {
	g := &Group{UID: object.GetUID(), Created: object.GetCreationTimestamp(), Deleting: object.GetDeletionTimestamp() != nil}
	for name, value := range object.GetAnnotations() {
		if topologyAnnotation(name) {
			if g.annotations == nil {
				g.annotations = map[string]string{}
			}
			g.annotations[name] = strings.Clone(value)
		}
	}
	title := Key{Source: source, Namespace: object.GetNamespace(), Name: object.GetName()}.title()
	spec, _ := object.Object["spec"].(map[string]any)
	if g.Min = number(spec["minMember"]); g.Min < 1 {
		g.Problem = noNumber("minMember", title, spec, fixMinimum)
		return g
	}
	if source == Volcano {
		if field, fix := unsupported(spec); field != "" {
			g.Problem = fmt.Sprintf("%s sets %s, which Berth does not support: %s or use Volcano's scheduler for its pods", title, field, fix)
		}
	}
	return g
}

// unsupported returns the first field of a PodGroup of Volcano which narrows what may start or where, and which Berth does not read. A
// networkTopology of the mode soft is a preference and is not read either, without a Problem.
func unsupported(spec map[string]any) (field, fix string) {
	if tasks, _ := spec["minTaskMember"].(map[string]any); len(tasks) > 0 {
		return "spec.minTaskMember", "set spec.minMember to the number of all pods"
	}
	if groups, _ := spec["subGroupPolicy"].([]any); len(groups) > 0 {
		return "spec.subGroupPolicy", "use the annotations " + AnnotationSegment + " and " + AnnotationSegmentSize
	}
	if topology, _ := spec["networkTopology"].(map[string]any); len(topology) > 0 && topology["mode"] != "soft" {
		return "spec.networkTopology", "use the annotation " + AnnotationRequired
	}
	return "", ""
}

// number returns a positive whole number of an object that the API server decoded, and 0 for anything else.
func number(value any) int32 {
	if n, ok := value.(int64); ok && n > 0 && n <= maxCount {
		return int32(n)
	}
	return 0
}

// noNumber says that a field of the spec is not a number of the API.
func noNumber(field, title string, spec map[string]any, fix string) string {
	switch value := spec[field].(type) {
	case nil:
		return fmt.Sprintf("%s does not set spec.%s: %s", title, field, fix)
	case string, int64, float64, bool:
		return noCount("spec."+field, title, fmt.Sprint(value), fix)
	default:
		return noCount("spec."+field, title, fmt.Sprintf("%T", value), fix)
	}
}
