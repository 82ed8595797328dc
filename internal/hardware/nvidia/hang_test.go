package nvidia_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// within fails the test when do takes longer than 20 s.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s has not returned", what)
	}
}

// TestSuspendBesideAHungSample: a call of the sampler that hangs makes Suspend fail with its name; scans and the watch
// continue, and a reset is possible once the call has returned.
func TestSuspendBesideAHungSample(t *testing.T) {
	const call = "GetUtilizationRates" // which only the sampler makes
	m, a := machine(t, "a100x8-40g")
	first := scan(t, a)
	faulty := first.GPUs[1].UUID
	inject(t, m, sim.Fault{GPU: string(faulty), Hang: call})
	sampler := a.Sampler(nvidia.SamplerDeps{SourceTimeout: 50 * time.Millisecond})
	if sample := sampler.Sample(t.Context()); sample.GPU(faulty) == nil {
		t.Fatal("no sample")
	}
	suspend := func() (func(), error) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		return a.Suspend(ctx)
	}
	for range 2 {
		within(t, "Suspend", func() {
			resume, err := suspend()
			if err == nil {
				resume()
				t.Error("suspended, although a call has not returned")
				return
			}
			for _, word := range []string{string(faulty), call} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v; want %q in it", err, word)
				}
			}
		})
		within(t, "Scan", func() {
			if got := scan(t, a); len(got.GPUs) != 8 || got.GPUs[0].Health.State != "" {
				t.Errorf("the scan says %+v", got.GPUs)
			}
		})
		within(t, "Watch", func() { oneXID(t, m, a, string(first.GPUs[3].UUID)) })
	}
	clearFaults(t, m, string(faulty))
	deadline := time.Now().Add(20 * time.Second)
	for {
		resume, err := suspend()
		if err == nil {
			resume()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// oneXID waits until the watch reports an XID.
func oneXID(t *testing.T, m *sim.Machine, a *nvidia.Adapter, id string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(100*time.Millisecond, func() {
		if err := m.Inject(sim.Fault{GPU: id, XID: 94}); err != nil {
			t.Error(err)
		}
	})
	var mu sync.Mutex
	reported := false
	if err := a.Watch(ctx, func(e gpu.Event) {
		mu.Lock()
		defer mu.Unlock()
		reported = reported || e.Code == gpu.XID(94) && string(e.GPU) == id
		if reported {
			cancel()
		}
	}); err != nil {
		t.Errorf("Watch: %v", err)
	}
}

// TestKernelLogWhileSuspended: XIDs of other GPUs during a MIG change or a reset are not lost.
func TestKernelLogWhileSuspended(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	first := scan(t, a)
	resume, err := a.Suspend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	within(t, "Watch", func() { oneXID(t, m, a, string(first.GPUs[5].UUID)) })
}

// TestKernelLogAfterResume: the watch does not end between the end of a MIG change or a reset and the next scan, which lists
// the GPUs to watch. An XID of that time is in the kernel log.
func TestKernelLogAfterResume(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	first := scan(t, a)
	resume, err := a.Suspend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, resume) // Before the XID.
	within(t, "Watch", func() { oneXID(t, m, a, string(first.GPUs[5].UUID)) })
}

// TestHungGPU: a GPU of which a call hangs delays no other GPU, and is read again once the call has returned. In the first scan
// of a process it is not advertised, and the others are.
func TestHungGPU(t *testing.T) {
	for _, call := range []string{"GetMigMode", "GetTotalEccErrors", "DeviceGetHandleByIndex", sim.AllCalls} {
		t.Run(call, func(t *testing.T) {
			m, known := shortDeadline(t, "a100x8-40g")
			before := scan(t, known)
			faulty := before.GPUs[2].UUID
			inject(t, m, sim.Fault{GPU: string(faulty), Hang: call})
			fresh := shortDeadlineOn(t, m)
			for name, a := range map[string]*nvidia.Adapter{"known": known, "new process": fresh} {
				for range 3 {
					within(t, "Scan", func() {
						got := scan(t, a)
						if len(got.GPUs) != 8 || len(got.Faults) > 0 {
							t.Errorf("%s: %d GPUs, faults %v", name, len(got.GPUs), got.Faults)
							return
						}
						for _, g := range got.GPUs {
							codes := ""
							for _, c := range g.Health.Causes {
								codes += c.Code
							}
							if g.UUID == faulty && (codes != "NVML_TIMEOUT" || !g.Health.Partial || !g.MIG.Unsure) {
								t.Errorf("%s: the sick GPU is %+v", name, g.Health)
							}
							if g.UUID == faulty && name == "new process" && !g.MIG.Unknown {
								t.Errorf("%s: the sick GPU's partition is said to be known", name)
							}
							if g.UUID != faulty && (codes != "" || g.Health.Partial) {
								t.Errorf("%s: %s is %+v", name, g.UUID, g.Health)
							}
						}
					})
				}
			}
			inject(t, m, sim.Fault{GPU: string(before.GPUs[4].UUID), ECC: 1})
			if got := scan(t, known); len(got.GPUs[4].Health.Causes) == 0 {
				t.Error("another GPU's fault is not seen")
			}
			clearFaults(t, m, sim.ClearAll)
			for name, a := range map[string]*nvidia.Adapter{"known": known, "new process": fresh} {
				deadline := time.Now().Add(20 * time.Second)
				for {
					got := scan(t, a)
					if len(got.GPUs) == 8 && got.GPUs[2].UUID == faulty && len(got.GPUs[2].Health.Causes) == 0 && !got.GPUs[2].MIG.Unsure {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("%s: the repaired GPU is %+v", name, got.GPUs[2])
					}
				}
			}
		})
	}
}

// shortDeadline returns a machine and an adapter with a short deadline.
func shortDeadline(t *testing.T, profile string) (*sim.Machine, *nvidia.Adapter) {
	t.Helper()
	m, _ := machine(t, profile)
	return m, shortDeadlineOn(t, m)
}

func shortDeadlineOn(t *testing.T, m *sim.Machine) *nvidia.Adapter {
	t.Helper()
	a := nvidia.New(nvidia.Deps{Library: m.NVML(), Roots: rootsOf(m), CallDeadline: 300 * time.Millisecond})
	t.Cleanup(a.Close)
	return a
}
