package definitions

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// defaultedSpec returns the spec of an object as the API server would return it: with the defaults, and without fields that the version of
// the API that Berth was built with does not have. So a default that a newer API server adds is no difference.
func defaultedSpec(object *unstructured.Unstructured) (any, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensions.AddToScheme, resourceapi.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	typed, err := scheme.New(object.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	text, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, typed); err != nil {
		return nil, err
	}
	scheme.Default(typed)
	if text, err = json.Marshal(typed); err != nil {
		return nil, err
	}
	var plain struct {
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(text, &plain); err != nil {
		return nil, err
	}
	return plain.Spec, nil
}

// difference is a field of the live object that differs from the wanted one.
type difference struct {
	path string
	// lacking is true where the live object does not have the field.
	lacking bool
}

// differences returns the fields of the live object that differ from the wanted one, sorted. Labels and annotations that others add are no
// difference.
func differences(live *unstructured.Unstructured, w wanted) ([]difference, error) {
	spec, err := defaultedSpec(live)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", live.GetKind(), live.GetName(), err)
	}
	found := differing("spec", spec, w.spec)
	for _, part := range []struct {
		path string
		live map[string]string
		want map[string]string
	}{
		{"metadata.annotations", live.GetAnnotations(), w.object.GetAnnotations()},
		{"metadata.labels", live.GetLabels(), w.object.GetLabels()},
	} {
		for key, value := range part.want {
			if got, ok := part.live[key]; !ok || got != value {
				found = append(found, difference{part.path + "[" + key + "]", !ok})
			}
		}
	}
	slices.SortFunc(found, func(a, b difference) int { return strings.Compare(a.path, b.path) })
	return found, nil
}

// differing returns where two values of JSON differ.
func differing(path string, live, want any) []difference {
	switch want := want.(type) {
	case map[string]any:
		live, ok := live.(map[string]any)
		if !ok {
			break
		}
		var found []difference
		for _, key := range slices.Sorted(maps.Keys(merge(live, want))) {
			found = append(found, differing(path+"."+key, live[key], want[key])...)
		}
		return found
	case []any:
		live, ok := live.([]any)
		if !ok || len(live) != len(want) {
			break
		}
		var found []difference
		for i := range want {
			found = append(found, differing(fmt.Sprintf("%s[%d]", path, i), live[i], want[i])...)
		}
		return found
	}
	if reflect.DeepEqual(live, want) {
		return nil
	}
	return []difference{{path, live == nil}}
}

// without returns the differences that are not among others.
func without(all, others []difference) []difference {
	return slices.DeleteFunc(slices.Clone(all), func(d difference) bool { return slices.Contains(others, d) })
}

// dropped reports whether the live object lacks each of the fields, and has no other value of any.
func dropped(all []difference) bool {
	return !slices.ContainsFunc(all, func(d difference) bool { return !d.lacking })
}

func merge(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// mostPaths is how many fields a message lists; an Event has 1024 characters.
const mostPaths = 3

// list joins the paths of fields for a message.
func list(fields []difference) string {
	var paths []string
	for _, d := range fields {
		paths = append(paths, d.path)
	}
	return phrase.Some(paths, mostPaths)
}

// lastWriter returns the field manager that changed an object last, after the operator and without its status; "" for none. One that has
// only removed fields is not known.
func lastWriter(live *unstructured.Unstructured) string {
	var own, last *metav1.ManagedFieldsEntry
	for _, entry := range live.GetManagedFields() {
		switch {
		case entry.Subresource != "" || entry.Time == nil:
		case entry.Manager == FieldManager:
			own = later(own, &entry)
		default:
			last = later(last, &entry)
		}
	}
	if last == nil || own != nil && last.Time.Before(own.Time) {
		return ""
	}
	return last.Manager
}

func later(a, b *metav1.ManagedFieldsEntry) *metav1.ManagedFieldsEntry {
	if a == nil || a.Time.Before(b.Time) {
		return b
	}
	return a
}

// ours tells whether Berth made a DeviceClass: it carries Berth's label, or one of Berth's programs owns fields of it.
func ours(live *unstructured.Unstructured) bool {
	return live.GetLabels()[partOf] == partOfBerth || writtenBy(live, FieldManager, "berth-sandbox")
}

// writtenBy tells whether one of the field managers owns fields of an object.
func writtenBy(live *unstructured.Unstructured, managers ...string) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return slices.Contains(managers, entry.Manager)
	})
}

// ofSpec returns the differences that are in the spec.
func ofSpec(all []difference) []difference {
	return slices.DeleteFunc(slices.Clone(all), func(d difference) bool { return !strings.HasPrefix(d.path, "spec") })
}
