package labels

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
)

// TestVendorWithoutLabels checks that its GPUs are counted, and change no label of another vendor.
func TestVendorWithoutLabels(t *testing.T) {
	alone := gpus("Stub", "Stub")
	for i := range alone.GPUs {
		alone.GPUs[i].Vendor = "stub"
	}
	alone.GPUs[1].Health.State = gpu.Unhealthy
	want := Labels{"berth.dev/gpu.healthy": "1", "berth.dev/gpu.unhealthy": "1"}
	if diff := cmp.Diff(want, build(Input{Snapshot: alone})); diff != "" {
		t.Errorf("alone (-want +got):\n%s", diff)
	}

	own := with(gpus(h100, h100), func(s *gpu.Snapshot) {
		s.Topology.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 18})
	})
	want = build(Input{Snapshot: own})
	want["berth.dev/gpu.healthy"] = "3"
	beside := with(gpus("Stub", h100, h100), func(s *gpu.Snapshot) {
		s.GPUs[0].Vendor = "stub"
		s.Topology.Set(1, 2, gpu.Link{Kind: gpu.LinkNVLink, Count: 18})
	})
	if diff := cmp.Diff(want, build(Input{Snapshot: beside})); diff != "" {
		t.Errorf("beside GPUs with labels (-want +got):\n%s", diff)
	}
}

// other labels its GPUs with a key of its own, and with one of NVIDIA's.
type other struct{}

func (other) Name() string { return "other" }

func (other) Labels(in *labelset.Input) labelset.Labels {
	return labelset.Labels{"other.example/gpu.product": in.Snapshot.GPUs[0].Product, "nvidia.com/gpu.product": "other"}
}

func (other) VirtualGPU([]byte) (labelset.VGPU, error) { return labelset.VGPU{}, errors.New("unknown") }

// TestSeveralVendors checks that each vendor sees its own GPUs, and that of two with one key the first has precedence.
func TestSeveralVendors(t *testing.T) {
	s := with(gpus(h100, "Other"), func(s *gpu.Snapshot) { s.GPUs[1].Vendor = "other" })
	got := Build(Input{Snapshot: s, Vendors: []Vendor{gpulabels.Vendor{}, other{}}})
	want := Labels{
		"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "1", "other.example/gpu.product": "Other", "berth.dev/gpu.healthy": "2",
	}
	for key := range want {
		if got[key] != want[key] {
			t.Errorf("%s is %q, want %q", key, got[key], want[key])
		}
	}
}
