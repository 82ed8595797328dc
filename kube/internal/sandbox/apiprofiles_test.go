package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestAPINodeProfiles(t *testing.T) {
	tests := map[string]struct {
		nodes int
		given map[string]string
		want  string // the nodes with their profiles, or a part of the error
	}{
		"none":                    {2, nil, ""},
		"names":                   {3, map[string]string{"api-node-0000": "h100x8", "api-node-0002": "a100x8-40g"}, "0000=h100x8 0002=a100x8-40g"},
		"a pattern":               {3, map[string]string{"*": "h100x8"}, "0000=h100x8 0001=h100x8 0002=h100x8"},
		"a name beside a pattern": {3, map[string]string{"api-node-*": "h100x8", "api-node-0001": "t4x4"}, "0000=h100x8 0001=t4x4 0002=h100x8"},
		"two patterns":            {12, map[string]string{"*-001?": "h100x8", "*-0000": "t4x4"}, "0000=t4x4 0010=h100x8 0011=h100x8"},
		"no such node":            {2, map[string]string{"api-node-0002": "h100x8"}, "api-node-0000 to api-node-0001"},
		"no such machine":         {2, map[string]string{"*": "h100x9"}, "there is no such machine"},
		"twice":                   {2, map[string]string{"*": "h100x8", "api*": "t4x4"}, "* and api* both match api-node-0000"},
		"no pattern":              {2, map[string]string{"[": "h100x8"}, "use * and ?"},
		"no API nodes":            {0, map[string]string{"*": "h100x8"}, "no API node matches"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: t.TempDir(), Bin: t.TempDir(), APINodes: tc.nodes, APINodeProfiles: tc.given}
			of, err := o.checkAPIProfiles()
			var got []string
			for _, node := range slices.Sorted(maps.Keys(of)) {
				got = append(got, strings.TrimPrefix(node, "api-node-")+"="+of[node])
			}
			if text := strings.Join(got, " "); err == nil && text != tc.want || err != nil && (tc.want == "" || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%q, %v, want %q", text, err, tc.want)
			}
			if complete := o.complete(); fmt.Sprint(complete) != fmt.Sprint(err) {
				t.Errorf("as an option: %v, want %v", complete, err)
			}
		})
	}
}

// TestAPIMachines checks that the GPUNodes of API nodes describe their machines: with the links and the memory of the model, and with
// UUIDs of their own.
func TestAPIMachines(t *testing.T) {
	rows := map[string]string{}
	for name, want := range map[string]struct {
		gpus  int
		model string
		gib   int64
	}{
		"h100x8": {8, "NVIDIA H100 80GB HBM3", 79}, "v100x8-hybrid-mesh": {8, "V100", 15}, "t4x4": {4, "T4", 14}, "a100x16": {16, "A100", 39},
	} {
		machine, err := readAPIMachine(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		node, gpuNode := apiNode("api-node-0001", machine.gpus()), apiGPUNode("api-node-0001", machine)
		status, other := gpuNode.Status, apiGPUNode("api-node-0002", machine).Status
		if n := node.Status.Allocatable[apiNodeResource]; len(status.Devices) != want.gpus || n.Value() != int64(want.gpus) || status.Summary.GPUs != want.gpus {
			t.Errorf("%s: %d devices, %d allocatable, summary %+v; want %d", name, len(status.Devices), n.Value(), status.Summary, want.gpus)
		}
		if _, err := gpu.ParseTopology(status.Topology); err != nil || len(status.Topology) != want.gpus {
			t.Errorf("%s: the topology is %q: %v", name, status.Topology, err)
		}
		rows[fmt.Sprint(status.Topology)] = name
		numa := map[int]bool{}
		for i, d := range status.Devices {
			numa[d.NUMANode] = true
			if !strings.Contains(d.Product, want.model) || d.MemoryBytes>>30 < want.gib || d.MemoryBytes>>30 > want.gib+1 || d.Offered == nil {
				t.Errorf("%s: device %d is %+v", name, i, d)
			}
			if d.UUID != fmt.Sprintf("GPU-api-node-0001-%d", d.Index) || d.UUID == other.Devices[i].UUID {
				t.Errorf("%s: UUIDs %s and %s", name, d.UUID, other.Devices[i].UUID)
			}
		}
		if len(numa) < 2 && name != "t4x4" {
			t.Errorf("%s: the GPUs are on the NUMA nodes %v", name, numa)
		}
		if status.Gate == nil || status.Gate.Key != "api-node-0001-1" || other.Gate.Key == status.Gate.Key {
			t.Errorf("%s: the gate is %+v", name, status.Gate)
		}
	}
	if len(rows) != 4 {
		t.Errorf("only %d machines have other links: %v", len(rows), rows)
	}
}
