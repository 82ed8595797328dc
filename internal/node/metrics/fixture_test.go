package metrics_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/stub"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// moment is when every sample of the tests was taken.
func moment() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) }

func must[T any](t testing.TB) func(value T, ret nvml.Return) T {
	return func(value T, ret nvml.Return) T {
		t.Helper()
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		return value
	}
}

// machine makes a simulated machine that has the same names in every run.
func machine(t testing.TB, profile string) *sim.Machine {
	t.Helper()
	m, err := sim.CreateWith(filepath.Join(t.TempDir(), "machine"), profile, sim.Options{Seed: "metrics", NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// partition gives a GPU n MIG devices of one slice.
func partition(t testing.TB, m *sim.Machine, slot, n int) {
	t.Helper()
	library := m.NVML()
	if ret := library.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	d := must[nvml.Device](t)(library.DeviceGetHandleByIndex(slot))
	if activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	} else if activation == nvml.ERROR_RESET_REQUIRED {
		if err := m.ResetGPUs(fmt.Sprint(slot)); err != nil {
			t.Fatal(err)
		}
	}
	info := must[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE))
	for range n {
		gi := must[nvml.GpuInstance](t)(d.CreateGpuInstance(&info))
		ci := must[nvml.ComputeInstanceProfileInfo](t)(gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED))
		must[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&ci))
	}
}

// observe scans and samples the machine twice, since profiling needs two.
func observe(t testing.TB, m *sim.Machine) metrics.Input {
	t.Helper()
	root := m.Root()
	a := nvidia.New(nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}})
	t.Cleanup(a.Close)
	snapshot, err := a.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sampler := a.Sampler(nvidia.SamplerDeps{Now: moment})
	sampler.Sample(t.Context())
	return metrics.Input{Node: "node-a", Snapshot: &snapshot, Sample: sampler.Sample(t.Context()), Vendors: []gpu.Traits{a.Traits()}, DCGMFields: dcgm.Defaults()}
}

func work(t testing.TB, m *sim.Machine, slot int, w sim.Work) {
	t.Helper()
	if err := m.SetWork(fmt.Sprint(slot), w); err != nil {
		t.Fatal(err)
	}
}

// holding is the hold of a pod's container on a device.
func holding(key gpu.DeviceKey, o metrics.Owner, resource, mode string) metrics.Holding {
	holder := gpu.Holder{Kind: gpu.HolderPod, Namespace: o.Namespace, Name: o.Pod, Container: o.Container, PodUID: o.PodUID, Resource: resource}
	return metrics.HoldingsOf(gpu.Holding{Key: key, Holder: holder}, mode)[0]
}

func owner(pod string) metrics.Owner {
	return metrics.Owner{Namespace: "team", Pod: pod, Container: "main", PodUID: "uid-" + pod}
}

// busy is typical of training.
func busy(programs ...sim.Program) sim.Work {
	return sim.Work{
		SM: 80, Memory: 40, Encoder: 2, Decoder: 1, PowerWatts: 312, Joules: 123_456_789, PCIeKBps: 2_000_000,
		NVLinkKiB: 1 << 30, ThrottledMillis: 1500, Programs: programs,
	}
}

// worlds are the pages that golden files hold.
func worlds() map[string]func(t testing.TB) metrics.Input {
	return map[string]func(t testing.TB) metrics.Input{
		// One GPU whole, one partitioned with three devices (one held, one with a process of no pod, one free), one
		// time-sliced, one with MPS, one that is held and idle, one lost.
		"a100-mixed-use": func(t testing.TB) metrics.Input {
			m := machine(t, "a100x8-40g")
			partition(t, m, 1, 3)
			found := observe(t, m)
			id := func(i int) gpu.UUID { return found.Snapshot.GPUs[i].UUID }
			mig := found.Snapshot.GPUs[1].MIG.Devices
			work(t, m, 0, busy(sim.Program{PID: 100, MemoryMiB: 30000, SM: 80, Memory: 40}))
			work(t, m, 1, sim.Work{PowerWatts: 120, Programs: []sim.Program{
				{PID: 110, MIG: string(mig[0].UUID), MemoryMiB: 2048},
				{PID: 111, MIG: string(mig[1].UUID), MemoryMiB: 512},
			}})
			work(t, m, 2, busy(
				sim.Program{PID: 120, MemoryMiB: 1000, SM: 50, Memory: 20},
				sim.Program{PID: 121, MemoryMiB: 2000, SM: 30, Memory: 20},
				sim.Program{PID: 122, MemoryMiB: 100},
			))
			work(t, m, 3, busy(
				sim.Program{PID: 130, MPS: true, MemoryMiB: 4000, SM: 60, Memory: 30},
				sim.Program{PID: 131, MPS: true, MemoryMiB: 500, SM: 20, Memory: 10},
			))
			if err := m.Inject(sim.Fault{GPU: "6", ECC: 3}); err != nil {
				t.Fatal(err)
			}
			if err := m.Inject(sim.Fault{GPU: "7", Lost: true}); err != nil {
				t.Fatal(err)
			}
			in := observe(t, m)
			hold := func(key gpu.DeviceKey, pod, resource, mode string) {
				in.Holdings = append(in.Holdings, holding(key, owner(pod), resource, mode))
			}
			hold(gpu.DeviceKey{GPU: id(4)}, "idle", "nvidia.com/gpu", "exclusive")
			hold(gpu.DeviceKey{GPU: id(3), Share: 2}, "mps-b", "nvidia.com/gpu.shared", "mps")
			hold(gpu.DeviceKey{GPU: id(3), Share: 1}, "mps-a", "nvidia.com/gpu.shared", "mps")
			hold(gpu.DeviceKey{GPU: id(2), Share: 1}, "slice-a", "nvidia.com/gpu.shared", "timeslicing")
			hold(gpu.DeviceKey{GPU: id(2), Share: 3}, "slice-c", "nvidia.com/gpu.shared", "timeslicing")
			hold(gpu.DeviceKey{GPU: id(2), Share: 2}, "slice-b", "nvidia.com/gpu.shared", "timeslicing")
			hold(gpu.DeviceKey{GPU: id(1), MIG: mig[0].UUID}, "small", "nvidia.com/mig-1g.5gb", "exclusive")
			hold(gpu.DeviceKey{GPU: id(0)}, "train", "nvidia.com/gpu", "exclusive")
			in.Owners = map[int]metrics.Owner{
				100: owner("train"), 110: owner("small"), 120: owner("slice-a"), 121: owner("slice-b"), 130: owner("mps-a"), 131: owner("mps-b"),
			}
			in.XIDs = []metrics.XIDCount{
				{GPU: id(7), XID: 79, Count: 1, Last: moment()},
				{GPU: id(6), XID: 48, Count: 2, Last: moment().Add(-time.Hour)},
				{GPU: id(6), XID: 13, Count: 7, Last: moment().Add(-time.Minute)},
			}
			return in
		},
		"h100-whole": func(t testing.TB) metrics.Input {
			m := machine(t, "h100x8")
			for slot := range 8 {
				work(t, m, slot, busy(sim.Program{PID: 200 + slot, MemoryMiB: 70000, SM: 80, Memory: 40}))
			}
			in := observe(t, m)
			in.Owners = map[int]metrics.Owner{}
			for slot := range 8 {
				o := metrics.Owner{
					Namespace: "research-large-language-models", Pod: fmt.Sprintf("pretraining-run-0042-worker-%d-x7f9k", slot/4),
					Container: "trainer", PodUID: fmt.Sprintf("3f1c7b9e-0a4d-4f7e-9a53-5d2e8c6b7a%02d", slot/4),
				}
				in.Holdings = append(in.Holdings, holding(gpu.DeviceKey{GPU: in.Snapshot.GPUs[slot].UUID}, o, "nvidia.com/gpu", "exclusive"))
				in.Owners[200+slot] = o
			}
			return in
		},
		// GPUs of another vendor beside NVIDIA's, of which one is held.
		"two-vendors": func(t testing.TB) metrics.Input {
			in := observe(t, machine(t, "t4x4"))
			dir := t.TempDir()
			for path, content := range map[string]string{
				"driver": "1.0", "gpu0/uuid": "EX-0", "gpu0/product": "Example One", "gpu0/memory": "1073741824",
				"gpu1/uuid": "EX-1", "gpu1/product": "Example One", "gpu1/memory": "1073741824", "gpu1/fault": "too hot",
			} {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			vendor := stub.New(dir)
			found, err := vendor.Scan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			both := gpu.Snapshot{
				Vendors: append(found.Vendors, in.Snapshot.Vendors...), GPUs: append(found.GPUs, in.Snapshot.GPUs...),
			}
			ctx, enough := context.WithCancel(t.Context())
			if err := vendor.Sample(ctx, func(s gpu.Sample) {
				in.Sample.GPUs = append(s.GPUs, in.Sample.GPUs...)
				enough()
			}); err != nil {
				t.Fatal(err)
			}
			in.Snapshot, in.Vendors = &both, append(in.Vendors, vendor.Traits())
			in.Holdings = []metrics.Holding{
				holding(gpu.DeviceKey{GPU: "EX-0"}, owner("other"), "example.com/gpu", "exclusive"),
				holding(gpu.DeviceKey{GPU: both.GPUs[2].UUID}, owner("train"), "nvidia.com/gpu", "exclusive"),
			}
			return in
		},
		// A GPU that a claim of one pod holds, one whose claim two pods share, and one of a claim of which no pod is known.
		"claims": func(t testing.TB) metrics.Input {
			m := machine(t, "t4x4")
			work(t, m, 0, busy(sim.Program{PID: 300, MemoryMiB: 3000, SM: 80, Memory: 40}))
			work(t, m, 1, busy(
				sim.Program{PID: 310, MemoryMiB: 1000, SM: 50, Memory: 20}, sim.Program{PID: 311, MemoryMiB: 2000, SM: 30, Memory: 20},
				sim.Program{PID: 312, MemoryMiB: 100},
			))
			in := observe(t, m)
			for i, pods := range [][]gpu.Pod{
				{{UID: "uid-alone", Namespace: "team", Name: "alone"}},
				{{UID: "uid-b", Namespace: "team", Name: "b"}, {UID: "uid-a", Namespace: "team", Name: "a"}},
				{{UID: "uid-new"}},
			} {
				h := gpu.Holding{
					Key: gpu.DeviceKey{GPU: in.Snapshot.GPUs[i].UUID}, Requests: []string{"big", "small"}[:1+i%2], Pods: pods,
					Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: fmt.Sprintf("claim-%d", i), Namespace: "team", Name: fmt.Sprintf("gpus-%d", i)},
				}
				in.Holdings, in.Claims = append(in.Holdings, metrics.HoldingsOf(h, "exclusive")...), append(in.Claims, h)
			}
			in.Owners = map[int]metrics.Owner{300: owner("alone"), 310: owner("a"), 311: owner("b"), 312: owner("stranger")}
			return in
		},
		"mixed": func(t testing.TB) metrics.Input { return observe(t, machine(t, "mixed")) },
	}
}
