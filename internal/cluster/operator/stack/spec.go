package stack

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// What the operator adds to the GPUStack.
const (
	fieldManager = "berth-operator"
	managedBy    = "app.kubernetes.io/managed-by"
	partOf       = "app.kubernetes.io/part-of"
	// hashAnnotation says which spec was applied: with it an edit by others differs from a change of the ConfigMap.
	hashAnnotation = v1alpha1.Group + "/spec-hash"
)

// wanted is the GPUStack as it is to be.
type wanted struct {
	spec        v1alpha1.GPUStackSpec
	labels      map[string]string
	annotations map[string]string
}

// read reads the spec of the ConfigMap. The error says what is wrong with it.
func read(config *corev1.ConfigMap) (wanted, error) {
	text, ok := config.Data[v1alpha1.GPUStackKey]
	if !ok {
		return wanted{}, fmt.Errorf("it has no key %s", v1alpha1.GPUStackKey)
	}
	var spec v1alpha1.GPUStackSpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		return wanted{}, fmt.Errorf("read %s: %w", v1alpha1.GPUStackKey, err)
	}
	if spec.Version == "" || spec.Namespace == "" || len(spec.Components) == 0 {
		return wanted{}, errors.New(v1alpha1.GPUStackKey + " must have version, namespace and components")
	}
	// As the API server defaults it.
	if spec.Gate != (v1alpha1.Gate{}) && spec.Gate.Mode == "" {
		spec.Gate.Mode = v1alpha1.GateEnforce
	}
	canonical, err := json.Marshal(spec)
	if err != nil {
		return wanted{}, fmt.Errorf("read %s: %w", v1alpha1.GPUStackKey, err)
	}
	sum := sha256.Sum256(canonical)
	return wanted{spec: spec, labels: map[string]string{managedBy: fieldManager, partOf: "berth"},
		annotations: map[string]string{hashAnnotation: hex.EncodeToString(sum[:8])}}, nil
}

// object returns what is applied.
func (w wanted) object() (*unstructured.Unstructured, error) {
	text, err := json.Marshal(w.spec)
	if err != nil {
		return nil, err
	}
	spec := map[string]any{}
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetAPIVersion(v1alpha1.APIVersion)
	object.SetKind(v1alpha1.KindGPUStack)
	object.SetName(v1alpha1.GPUStackName)
	object.SetLabels(w.labels)
	object.SetAnnotations(w.annotations)
	return object, nil
}

// differences returns the paths at which the live object differs, sorted. Labels and annotations that others add are no difference.
func (w wanted) differences(live *v1alpha1.GPUStack) []string {
	var paths []string
	if !apiequality.Semantic.DeepEqual(live.Spec, w.spec) {
		paths = differingFields(live.Spec, w.spec)
	}
	for _, part := range []struct {
		path string
		live map[string]string
		want map[string]string
	}{
		{"metadata.annotations", live.Annotations, w.annotations},
		{"metadata.labels", live.Labels, w.labels},
	} {
		for key, value := range part.want {
			if part.live[key] != value {
				paths = append(paths, part.path+"["+key+"]")
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// differingFields returns the fields of two specs that differ, by their names in JSON.
func differingFields(a, b v1alpha1.GPUStackSpec) []string {
	x, y := plain(a), plain(b)
	all := maps.Clone(x)
	maps.Copy(all, y)
	var paths []string
	for field := range all {
		if string(x[field]) != string(y[field]) {
			paths = append(paths, "spec."+field)
		}
	}
	if len(paths) == 0 {
		return []string{"spec"}
	}
	return paths
}

func plain(spec v1alpha1.GPUStackSpec) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if text, err := json.Marshal(spec); err == nil {
		_ = json.Unmarshal(text, &fields) // It was marshaled from a struct.
	}
	return fields
}

// mostPaths is how many paths a message lists: an Event has 1024 characters.
const mostPaths = 3
