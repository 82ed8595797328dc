package definitions

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-gpu/berth/api/crds"
)

//go:embed deviceclasses.yaml
var deviceClasses string

// What the operator adds to each object.
const (
	// FieldManager is the operator's name in the objects' managed fields.
	FieldManager = "berth-operator"

	// partOf is the label by which the operator watches the objects.
	partOf      = "app.kubernetes.io/part-of"
	partOfBerth = "berth"
	managedBy   = "app.kubernetes.io/managed-by"
	// hashAnnotation says which embedded object was applied: with it an edit by others differs from the change by an upgrade of Berth.
	hashAnnotation = "berth.dev/definition-hash"
)

// kind is a kind of objects that are kept.
type kind struct {
	schema.GroupVersionKind
	resource string
	// versioned objects carry a schema version.
	versioned bool
	// foreign tells whether an object may belong to somebody else.
	foreign bool
	// optional are the fields that an API server may not have, with what is to be known about each.
	optional map[string]string
}

func definitionKind() kind {
	return kind{GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		resource: "customresourcedefinitions", versioned: true}
}

func classKind() kind {
	return kind{GroupVersionKind: schema.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "DeviceClass"},
		resource: "deviceclasses", foreign: true, optional: map[string]string{"spec.extendedResourceName": "the API server drops spec.extendedResourceName, since its " +
			"feature gate DRAExtendedResource is off: GPUs that are allocated through DRA are for claims only"}}
}

// wanted is an object as it is to be.
type wanted struct {
	// object is what is applied.
	object *unstructured.Unstructured
	// spec is its spec with the defaults of the API server.
	spec any
	hash string
}

// embedded returns the embedded objects of a kind by name.
func embedded(k kind) (map[string]wanted, error) {
	if k.foreign {
		return read(k, []byte(deviceClasses))
	}
	all := map[string]wanted{}
	for _, d := range crds.All() {
		one, err := read(k, d.YAML)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, one)
	}
	return all, nil
}

// ClassDriver is the DRA driver whose devices the DeviceClasses select.
const ClassDriver = "gpu.berth.dev"

// ClassesByResource returns the names of the DeviceClasses by the extended resource that each stands for.
func ClassesByResource() (map[string]string, error) {
	all, err := embedded(classKind())
	if err != nil {
		return nil, err
	}
	classes := make(map[string]string, len(all))
	for name, w := range all {
		resource, _, err := unstructured.NestedString(w.object.Object, "spec", "extendedResourceName")
		if err != nil {
			return nil, fmt.Errorf("read the embedded DeviceClass %s: %w", name, err)
		}
		if resource != "" {
			classes[resource] = name
		}
	}
	return classes, nil
}

// read reads YAML documents.
func read(k kind, text []byte) (map[string]wanted, error) {
	all := map[string]wanted{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the embedded %s: %w", k.resource, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		w, err := newWanted(object)
		if err != nil {
			return nil, fmt.Errorf("read the embedded %s %s: %w", k.Kind, object.GetName(), err)
		}
		all[object.GetName()] = w
	}
}

// newWanted adds the operator's labels and the hash to an embedded object.
func newWanted(object *unstructured.Unstructured) (wanted, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return wanted{}, err
	}
	sum := sha256.Sum256(text)
	hash := hex.EncodeToString(sum[:8])
	object.SetLabels(merged(object.GetLabels(), map[string]string{partOf: partOfBerth, managedBy: FieldManager}))
	object.SetAnnotations(merged(object.GetAnnotations(), map[string]string{hashAnnotation: hash}))
	spec, err := defaultedSpec(object)
	if err != nil {
		return wanted{}, err
	}
	return wanted{object: object, spec: spec, hash: hash}, nil
}

// merged returns the entries of both maps; those of over win.
func merged(under, over map[string]string) map[string]string {
	all := make(map[string]string, len(under)+len(over))
	maps.Copy(all, under)
	maps.Copy(all, over)
	return all
}
