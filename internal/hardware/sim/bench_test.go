package sim

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// BenchmarkCreate creates a machine of 8 GPUs.
func BenchmarkCreate(b *testing.B) {
	for b.Loop() {
		if _, err := CreateWith(temporary(b), "h100x8", Options{Seed: "x", NoDeviceNodes: true}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCall measures one call of NVML while nothing changes.
func BenchmarkCall(b *testing.B) {
	d := gpu(b, open(b, newMachine(b, "h100x8")), 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, ret := d.GetUUID(); ret != nvml.SUCCESS {
			b.Fatal(ret)
		}
	}
}

// BenchmarkInject measures a change that leaves the file tree unchanged: an XID.
func BenchmarkInject(b *testing.B) {
	m := newMachine(b, "h100x8")
	for b.Loop() {
		if err := m.Inject(Fault{GPU: "0", XID: 31}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkInjectToWait measures the latency of an XID, from Inject to the return of a waiting event set.
func BenchmarkInjectToWait(b *testing.B) {
	m := newMachine(b, "h100x8")
	lib := open(b, m)
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		b.Fatal(ret)
	}
	defer set.Free()
	if ret := gpu(b, lib, 0).RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		b.Fatal(ret)
	}
	woke := make(chan nvml.Return)
	for b.Loop() {
		go func() {
			_, ret := set.Wait(5000)
			woke <- ret
		}()
		if err := m.Inject(Fault{GPU: "0", XID: 31}); err != nil {
			b.Fatal(err)
		}
		if ret := <-woke; ret != nvml.SUCCESS {
			b.Fatal(ret)
		}
	}
}
