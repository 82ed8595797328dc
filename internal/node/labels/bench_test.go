package labels

import (
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// BenchmarkBuild computes the labels of a node of 8 GPUs: unpartitioned, of two models, and of 56 MIG devices.
func BenchmarkBuild(b *testing.B) {
	for _, profile := range []string{"h100x8", "mixed"} {
		b.Run(profile, func(b *testing.B) {
			in := newNode(b, profile).input(offer.Settings{})
			b.ReportAllocs()
			for b.Loop() {
				build(in)
			}
		})
	}
	b.Run("56 MIG devices", func(b *testing.B) {
		s := gpus(h100, h100, h100, h100, h100, h100, h100, h100)
		for i := range s.GPUs {
			s.GPUs[i].MIG.Enabled = true
			for k := range 7 {
				s.GPUs[i].MIG.Devices = append(s.GPUs[i].MIG.Devices, gpu.MIGDevice{Partition: gpu.Partition{UUID: gpu.UUID("MIG-" + string(rune('a'+7*i+k))), Profile: "1g.10gb"}})
			}
		}
		units, _ := offer.Resolve(s, offer.Settings{})
		in := Input{Snapshot: s, Units: units}
		b.ReportAllocs()
		for b.Loop() {
			build(in)
		}
	})
}

// BenchmarkReadHost measures the reads of sysfs in a scan of 8 GPUs.
func BenchmarkReadHost(b *testing.B) {
	n := newNode(b, "h100x8")
	snapshot, sys := n.Scan(), filepath.Join(n.Machine.Root(), "sys")
	b.ReportAllocs()
	for b.Loop() {
		ReadHost(sys, snapshot, gpulabels.Vendor{})
	}
}
