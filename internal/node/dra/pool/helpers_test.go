package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// write prints slices as YAML with one line per device and counter set, so that a difference shows which of them changed.
func write(t *testing.T, slices []resourceapi.ResourceSlice) string {
	t.Helper()
	var b strings.Builder
	encode := func(value any) []byte {
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	for i := range slices {
		spec := &slices[i].Spec
		fmt.Fprintf(&b, "- metadata: {name: %s}\n  spec:\n", slices[i].Name)
		fmt.Fprintf(&b, "    driver: %s\n    nodeName: %s\n    pool: %s\n", spec.Driver, *spec.NodeName, encode(spec.Pool))
		for k := range spec.Devices {
			if k == 0 {
				b.WriteString("    devices:\n")
			}
			fmt.Fprintf(&b, "    - %s\n", encode(spec.Devices[k]))
		}
		for k := range spec.SharedCounters {
			if k == 0 {
				b.WriteString("    sharedCounters:\n")
			}
			fmt.Fprintf(&b, "    - %s\n", encode(spec.SharedCounters[k]))
		}
	}
	return b.String()
}

// settings publishes the GPUs of a snapshot; dynamic are the indices of those that are dynamic.
func settings(s *gpu.Snapshot, dynamic ...int) Settings {
	made := Settings{Node: "node-1", GPUs: map[gpu.UUID]Use{}}
	for i := range s.GPUs {
		made.GPUs[s.GPUs[i].UUID] = Use{}
	}
	for _, i := range dynamic {
		made.GPUs[s.GPUs[i].UUID] = Use{DynamicMIG: true}
	}
	return made
}

// upTo returns the numbers below n.
func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// clone returns a copy of a snapshot that a test can change.
func clone(s *gpu.Snapshot) *gpu.Snapshot {
	made := *s
	made.GPUs = append([]gpu.GPU(nil), s.GPUs...)
	made.Topology = gpu.NewTopology(len(s.Topology))
	for i := range s.Topology {
		copy(made.Topology[i], s.Topology[i])
	}
	return &made
}

// build returns valid slices.
func build(t testing.TB, s *gpu.Snapshot, with Settings, before []resourceapi.ResourceSlice) Result {
	t.Helper()
	result := Build(s, with, before)
	if err := Validate(result.Slices); err != nil {
		t.Fatal(err)
	}
	return result
}

// readSlices reads a golden file.
func readSlices(t testing.TB, name string) []resourceapi.ResourceSlice {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var list []resourceapi.ResourceSlice
	if err := yaml.UnmarshalStrict(content, &list); err != nil {
		t.Fatal(err)
	}
	return list
}
