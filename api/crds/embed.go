// Package crds holds the custom resource definitions of api/v1alpha1, so that each program that
// applies them applies the very same ones. It guarantees that they are valid YAML
// and match api/v1alpha1 (the file is generated, see generate below), and it must
// not import anything but the standard library.
package crds

import _ "embed"

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.0 object paths=../... crd output:crd:dir=.

//go:embed berth.dev_gpunodes.yaml
var gpuNodes string

// GPUNodes is the definition of gpunodes.berth.dev, in YAML.
func GPUNodes() []byte { return []byte(gpuNodes) }
