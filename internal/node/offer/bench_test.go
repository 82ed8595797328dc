package offer

import (
	"fmt"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// benchNode returns GPUs that are each shared by the rules, or partitioned into seven.
func benchNode(gpus int, mig bool) *gpu.Snapshot {
	snapshot := &gpu.Snapshot{}
	for i := range gpus {
		c := gpu.GPU{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%08d-1111-2222-3333-444444444444", i)), Index: i,
			Product: "NVIDIA A100-SXM4-40GB", ComputeCapability: gpu.Version{Major: 8}, MemoryBytes: 40 << 30,
		}
		c.MIG.Enabled = mig
		for j := range 7 {
			if mig {
				c.MIG.Devices = append(c.MIG.Devices,
					gpu.MIGDevice{
						Partition: gpu.Partition{UUID: gpu.UUID(fmt.Sprintf("MIG-%04d%04d-1111-2222-3333-444444444444", i, j)), Index: j, Profile: "1g.5gb"},
					})
			}
		}
		snapshot.GPUs = append(snapshot.GPUs, c)
	}
	return snapshot
}

func benchSettings(replicas int) Settings {
	sharing := Sharing{Mode: TimeSlicing, Replicas: replicas}
	return Settings{
		GPUs:       []GPURule{{Select: GPUSelect{Model: []string{"*H100*"}}}, {Sharing: sharing}},
		MIGDevices: []MIGRule{{Sharing: sharing}},
	}
}

// BenchmarkBuild measures what any change costs before the kubelet gets a new list.
func BenchmarkBuild(b *testing.B) {
	for _, bench := range []struct {
		name     string
		gpus     int
		replicas int
		mig      bool
	}{{"8x100", 8, 100, false}, {"16x7x4", 16, 4, true}} {
		b.Run(bench.name, func(b *testing.B) {
			snapshot := benchNode(bench.gpus, bench.mig)
			units, _ := Resolve(snapshot, benchSettings(bench.replicas))
			b.ReportAllocs()
			for b.Loop() {
				if len(Build(snapshot, units)) != 1 {
					b.Fatal("want one resource")
				}
			}
		})
	}
}

// BenchmarkSettle resolves and settles 16 GPUs of seven MIG devices, all of them held.
func BenchmarkSettle(b *testing.B) {
	snapshot := benchNode(16, true)
	applied, _ := Resolve(snapshot, benchSettings(2))
	settings := benchSettings(4)
	settings.MIGDevices[0].ResourceName = "example.com/other"
	holders := func(gpu.DeviceKey) []string { return []string{"default/train-0"} }
	b.ReportAllocs()
	for b.Loop() {
		wanted, _ := Resolve(snapshot, settings)
		if len(Settle(snapshot, wanted, applied, holders, nil)) != len(applied) {
			b.Fatal("want all that is held")
		}
	}
}
