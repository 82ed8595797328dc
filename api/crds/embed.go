// Package crds holds the custom resource definitions of api/v1alpha1, so that each program that
// applies them applies the very same ones, and the order of their versions. It guarantees that they are valid YAML
// and match api/v1alpha1 (the files are generated, see generate below), and it must
// not import anything but the standard library.
package crds

import (
	_ "embed"
	"strconv"
)

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.0 object paths=../... paths=../../internal/core/trace
//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.0 crd paths=../... output:crd:dir=.

//go:embed berth.dev_gpunodes.yaml
var gpuNodes string

//go:embed berth.dev_gpuquotas.yaml
var gpuQuotas string

//go:embed berth.dev_gpustacks.yaml
var gpuStacks string

//go:embed berth.dev_nodeoperations.yaml
var nodeOperations string

// GPUNodes is the definition of gpunodes.berth.dev, in YAML.
func GPUNodes() []byte { return []byte(gpuNodes) }

// Definition is a custom resource definition.
type Definition struct {
	// Name is the name of the object, such as gpunodes.berth.dev.
	Name string
	YAML []byte
}

// All returns all definitions, sorted by name.
func All() []Definition {
	return []Definition{
		{Name: "gpunodes.berth.dev", YAML: GPUNodes()}, {Name: "gpuquotas.berth.dev", YAML: []byte(gpuQuotas)},
		{Name: "gpustacks.berth.dev", YAML: []byte(gpuStacks)}, {Name: "nodeoperations.berth.dev", YAML: []byte(nodeOperations)},
	}
}

// VersionAnnotation is the annotation of a definition that orders its versions, counted from 1: a program does not
// change a definition that is newer than its own.
const VersionAnnotation = "berth.dev/schema-version"

// Version is the schema version of a definition with these annotations; 0 for one that carries none.
func Version(annotations map[string]string) int {
	n, err := strconv.Atoi(annotations[VersionAnnotation])
	if err != nil {
		return 0
	}
	return n
}
