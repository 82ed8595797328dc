package gpu_test

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestOf takes the parts of a snapshot of two vendors.
func TestOf(t *testing.T) {
	s := &gpu.Snapshot{
		Vendors:  []gpu.VendorState{{Name: "example", Driver: gpu.Driver{Version: "1"}}, {Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580"}}},
		GPUs:     []gpu.GPU{{UUID: "E0", Vendor: "example"}, {UUID: "N0", Vendor: gpu.NVIDIA}, {UUID: "N1", Vendor: gpu.NVIDIA}},
		Topology: gpu.NewTopology(3),
		Faults:   []gpu.Cause{{Code: "A"}},
	}
	s.Topology.Set(1, 2, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
	nvidia := s.Of(gpu.NVIDIA)
	if len(nvidia.GPUs) != 2 || nvidia.GPUs[0].UUID != "N0" || len(nvidia.Topology) != 2 || nvidia.Topology[0][1].Count != 4 ||
		len(nvidia.Vendors) != 1 || nvidia.Vendors[0].Driver.Version != "580" || len(nvidia.Faults) != 1 {
		t.Errorf("NVIDIA's part is %+v", nvidia)
	}
	if one := s.Of("example"); len(one.GPUs) != 1 || one.GPUs[0].UUID != "E0" || len(one.Topology) != 1 {
		t.Errorf("the other part is %+v", one)
	}
	if none := s.Of("none"); len(none.GPUs) != 0 || none.DriverPresent() {
		t.Errorf("the part of a vendor that is not there is %+v", none)
	}
	empty := &gpu.Snapshot{Vendors: s.Vendors[:1]}
	if none := empty.Of(gpu.NVIDIA); none.DriverPresent() {
		t.Errorf("the part of a vendor beside another's driver without GPUs is %+v", none)
	}
	if nvidia.Of(gpu.NVIDIA) != nvidia {
		t.Error("a snapshot of one vendor was copied")
	}
}
