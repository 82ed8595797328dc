package inventory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestLeaveOut changes one of four GPUs, and wants the others to stay, with their links.
func TestLeaveOut(t *testing.T) {
	partitions := func(ids ...gpu.UUID) []gpu.MIGDevice {
		var all []gpu.MIGDevice
		for _, id := range ids {
			all = append(all, gpu.MIGDevice{Partition: gpu.Partition{UUID: id}})
		}
		return all
	}
	tests := map[string]struct {
		change func(gpus []gpu.GPU)
		// want are the indices of the GPUs that stay, and faults a part of each fault.
		want   []int
		faults []string
	}{
		"nothing":             {func([]gpu.GPU) {}, []int{0, 1, 2, 3}, nil},
		"no UUID":             {func(g []gpu.GPU) { g[1].UUID = "" }, []int{0, 2, 3}, []string{`GPU 1 ("" at 0000:01:00.0) is left out: it has no UUID`}},
		"a UUID that is none": {func(g []gpu.GPU) { g[1].UUID = "GPU 1\n" }, []int{0, 2, 3}, []string{`"GPU 1\n" is no UUID`}},
		"a long UUID":         {func(g []gpu.GPU) { g[1].UUID = gpu.UUID(strings.Repeat("x", 1000)) }, []int{0, 2, 3}, []string{"is no UUID"}},
		"a UUID twice":        {func(g []gpu.GPU) { g[2].UUID = "GPU-0" }, []int{1, 3}, []string{"it has the UUID GPU-0 of GPU 2", "it has the UUID GPU-0 of GPU 0"}},
		"a UUID three times":  {func(g []gpu.GPU) { g[2].UUID, g[3].UUID = "GPU-0", "GPU-0" }, []int{1}, []string{"of GPU 3", "of GPU 0", "of GPU 0"}},
		"a PCI address twice": {func(g []gpu.GPU) { g[3].PCI = g[0].PCI }, []int{1, 2}, []string{"it has the PCI address 0000:00:01.0 of GPU 3", "of GPU 0"}},
		"no PCI address":      {func(g []gpu.GPU) { g[2].PCI, g[3].PCI = gpu.PCIAddress{}, gpu.PCIAddress{} }, []int{0, 1, 2, 3}, nil},
		"a minor twice":       {func(g []gpu.GPU) { g[3].Nodes = g[2].Nodes }, []int{0, 1}, []string{"it has the device node /dev/nvidia2 of GPU 3", "of GPU 2"}},
		"listed twice":        {func(g []gpu.GPU) { index := g[3].Index; g[3] = g[0]; g[3].Index = index }, []int{0, 1, 2}, []string{"GPU 3 (\"GPU-0\" at 0000:00:01.0) is left out: it is GPU 0, listed again"}},
		"a partition twice":   {func(g []gpu.GPU) { g[1].MIG.Devices = partitions("MIG-1", "MIG-1") }, []int{0, 2, 3}, []string{"it has the UUID MIG-1 twice"}},
		"a partition of another": {func(g []gpu.GPU) {
			g[1].MIG.Devices, g[2].MIG.Devices = partitions("MIG-1"), partitions("MIG-2", "MIG-1")
		}, []int{0, 3}, []string{"it has the UUID MIG-1 of GPU 2", "of GPU 1"}},
		"a partition like a GPU": {func(g []gpu.GPU) { g[1].MIG.Devices = partitions("GPU-3") }, []int{0, 2}, []string{"it has the UUID GPU-3 of GPU 3", "it has the UUID GPU-3 of GPU 1"}},
		"all":                    {func(g []gpu.GPU) { g[0].UUID, g[1].UUID, g[2].UUID, g[3].UUID = "", "", "", "" }, nil, []string{"no UUID", "no UUID", "no UUID", "no UUID"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			scan := gpu.Snapshot{Topology: gpu.NewTopology(4), Faults: []gpu.Cause{{Code: "OTHER"}}}
			for i := range 4 {
				scan.GPUs = append(scan.GPUs, gpu.GPU{UUID: gpu.UUID(fmt.Sprint("GPU-", i)), Index: i, PCI: gpu.PCIAddress{Bus: uint8(i), Device: uint8(1 - min(i, 1))},
					Nodes: []gpu.DeviceNode{{Path: fmt.Sprint("/dev/nvidia", i)}}})
				for j := range i {
					scan.Topology.Set(i, j, gpu.Link{Count: 10*i + j})
				}
			}
			tc.change(scan.GPUs)
			leaveOut(&scan)
			var got []int
			for i := range scan.GPUs {
				got = append(got, scan.GPUs[i].Index)
				for j := range i {
					if want := 10*scan.GPUs[i].Index + scan.GPUs[j].Index; link(&scan, i, j).Count != want || link(&scan, j, i).Count != want {
						t.Errorf("GPUs %d and %d: %d links, want %d", scan.GPUs[i].Index, scan.GPUs[j].Index, link(&scan, i, j).Count, want)
					}
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			if len(scan.Faults) != 1+len(tc.faults) || scan.Faults[0].Code != "OTHER" {
				t.Fatalf("faults %v, want %q", scan.Faults, tc.faults)
			}
			for i, want := range tc.faults {
				if fault := scan.Faults[1+i]; fault.Code != codeLeftOut || !strings.Contains(fault.Message, want) {
					t.Errorf("fault %+v, want %q", fault, want)
				}
			}
		})
	}
}
