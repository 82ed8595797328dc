package profile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryProfileLoads(t *testing.T) {
	want := []string{"a100x16", "a100x8-40g", "a100x8-80g", "a30x4", "b200x8", "gb10", "gb200x4", "h100x8", "h200x8",
		"l40sx8", "mixed", "rtxpro6000x8", "t4x20", "t4x4", "v100x8-hybrid-mesh"}
	if diff := cmp.Diff(want, Names()); diff != "" {
		t.Fatalf("Names() (-want +got):\n%s", diff)
	}
	for _, name := range Names() {
		machine, err := Load(name)
		if err != nil {
			t.Error(err)
			continue
		}
		for i, gpu := range machine.GPUs {
			if gpu.Path[len(gpu.Path)-1][5:7] >= gpu.PCI[5:7] {
				t.Errorf("%s GPU %d: the bridge %s is not above bus %s", name, i, gpu.Path[len(gpu.Path)-1], gpu.PCI)
			}
		}
	}
}

func TestUnknownProfileTeaches(t *testing.T) {
	_, err := Load("h100x9")
	if err == nil || !strings.Contains(err.Error(), `did you mean "h100x8"?`) || !strings.Contains(err.Error(), "v100x8-hybrid-mesh") {
		t.Errorf("Load(h100x9) = %v, want the nearest name and the list", err)
	}
}

func TestCheckFinds(t *testing.T) {
	models := map[string]Model{"a": {NVLinks: 2}}
	newGPU := func(pci string) GPU { return GPU{Model: "a", PCI: pci, Path: []string{"0000:00:01.0"}} }
	two := []GPU{newGPU("0000:01:00.0"), newGPU("0000:02:00.0")}
	node := []Node{{}}
	tests := map[string]struct {
		machine Machine
		want    string
	}{
		"no GPUs":        {Machine{}, "no GPUs"},
		"unknown model":  {Machine{GPUs: []GPU{{Model: "b"}}}, "unknown model"},
		"no path":        {Machine{GPUs: []GPU{{Model: "a"}}, NUMA: node}, "no PCI path"},
		"out of order":   {Machine{GPUs: []GPU{two[1], two[0]}, NUMA: node}, "must come before"},
		"no node":        {Machine{GPUs: two}, "no NUMA node"},
		"asymmetric":     {Machine{GPUs: two, NUMA: node, Mesh: [][]int{{0, 1}, {2, 0}}}, "not symmetric"},
		"too many links": {Machine{GPUs: two, NUMA: node, Mesh: [][]int{{0, 3}, {3, 0}}}, "the mesh uses 3"},
		"unknown extra":  {Machine{GPUs: two, NUMA: node, Extras: []string{"rdma"}}, "unknown extra"},
		"fabric links":   {Machine{GPUs: two, NUMA: node, Switch: &NVSwitch{Links: []int{3}}}, "the fabric uses 3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := test.machine.check(models); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("check() = %v, want %q", err, test.want)
			}
		})
	}
}

// TestGeometryNames derives each profile's name from its slices and memory, as NVIDIA's tools do, to detect a wrong
// number in the table.
func TestGeometryNames(t *testing.T) {
	models, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	for key, model := range models {
		if model.MIG == "" {
			continue
		}
		geometry, err := LoadGeometry(model.MIG)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range geometry.Profiles {
			eighths := math.Ceil(8 * float64(p.MemoryMiB) / float64(model.MemoryMiB))
			size := math.Round(eighths / 8 * math.Ceil(float64(model.MemoryMiB)/1024))
			want := fmt.Sprintf("%dg.%.0fgb", p.ComputeSlices, size)
			if end := strings.IndexAny(p.Name, "+-"); p.Name != want && (end < 0 || p.Name[:end] != want) {
				t.Errorf("%s %s: slices and memory make it %s", key, p.Name, want)
			}
			if p.MemorySlices != p.Size || p.Max > len(p.Starts) || !slices.IsSorted(p.Starts) {
				t.Errorf("%s %s: placements do not fit: %+v", key, p.Name, p)
			}
		}
	}
}
