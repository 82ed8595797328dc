package nvidia_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// partitioned is a simulated machine of two GPUs, the first of them with MIG devices and an uncorrectable memory error.
func partitioned(t testing.TB, profile string) (*sim.Machine, string) {
	t.Helper()
	m, a := machine(t, profile)
	first := scan(t, a)
	for _, g := range first.GPUs[2:] {
		if err := m.Inject(sim.Fault{GPU: string(g.UUID), Remove: true}); err != nil {
			t.Fatal(err)
		}
	}
	id := first.GPUs[0].UUID
	act := nvidia.NewActions(nvidia.Deps{Library: m.NVML()})
	pending, err := act.SetMIGMode(id, true)
	if err == nil && pending {
		err = m.ResetGPUs(string(id))
	}
	if err != nil {
		t.Fatal(err)
	}
	shape := scan(t, a).GPUs[0].MIG.Geometry
	two, three := shape.Profiles[1], shape.Profiles[2]
	for name, start := range map[string]int{two.Name: two.Starts[0], three.Name: three.Starts[1]} {
		if _, err := act.CreateMIG(id, name, start); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Inject(sim.Fault{GPU: string(id), ECC: 1}); err != nil {
		t.Fatal(err)
	}
	return m, string(id)
}

// withoutMissing returns a snapshot without the causes that failed calls add; only they may be added.
func withoutMissing(s *gpu.Snapshot) gpu.Snapshot {
	out := *s
	out.GPUs = slices.Clone(s.GPUs)
	for i := range out.GPUs {
		g := &out.GPUs[i]
		g.MIG.Unsure, g.Health.Partial, g.Life = false, false, gpu.Life{}
		var causes []gpu.Cause
		for _, c := range g.Health.Causes {
			if c.Code != "GPU_READ_FAILED" && c.Code != "GPU_UNREADABLE" {
				causes = append(causes, c)
			}
		}
		g.Health.Causes = causes
	}
	return out
}

// perScan returns how many calls a scan makes, those about a GPU and those of the library together.
func perScan(t *testing.T, m *sim.Machine) (first, later int) {
	t.Helper()
	library := m.NVML()
	a := nvidia.New(nvidia.Deps{Library: library, Roots: rootsOf(m)})
	defer a.Close()
	count := func() int {
		sum := 0
		for _, n := range sim.CallsOf(library) {
			sum += n
		}
		return sum
	}
	scan(t, a)
	first = count()
	scan(t, a)
	return first, count() - first
}

// errorKinds returns transient error codes.
func errorKinds() []string {
	return []string{"UNKNOWN", "TIMEOUT", "NOT_READY", "IN_USE", "GPU_IS_LOST", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NOT_FOUND", "NO_PERMISSION", "FUNCTION_NOT_FOUND"}
}

// TestOneFailedCall fails each call of a scan once, with each code. The snapshot equals the one before, with causes added.
func TestOneFailedCall(t *testing.T) {
	for _, profile := range []string{"a100x8-40g", "h100x8"} {
		t.Run(profile, func(t *testing.T) {
			m, id := partitioned(t, profile)
			_, calls := perScan(t, m)
			a := adapterOn(t, m)
			scan(t, a)
			before := scan(t, a)
			want := withoutMissing(before)
			tried := 0
			for _, kind := range errorKinds() {
				for skip := range calls {
					inject(t, m, sim.Fault{GPU: id, Transient: sim.TransientError{Call: sim.AllCalls, Error: kind, Times: 1, Skip: skip}})
					got := scan(t, a)
					if diff := cmp.Diff(want, withoutMissing(got)); diff != "" {
						t.Fatalf("call %d returned %s (-before +during):\n%s", skip, kind, diff)
					}
					if !healthy(got, id) {
						t.Fatalf("call %d returned %s: %+v", skip, kind, got.GPU(gpu.UUID(id)).Health)
					}
					if cmp.Equal(before, got) && kind == "UNKNOWN" {
						calls = skip // a scan makes no further calls about the GPU
						break
					}
					tried++
					if diff := cmp.Diff(before, scan(t, a), anyLife()); diff != "" {
						t.Fatalf("after call %d returned %s (-before +after):\n%s", skip, kind, diff)
					}
				}
				clearTransients(t, m, id)
			}
			t.Logf("%d failures tried, %d calls in a scan", tried, calls)
			if tried < 100 {
				t.Errorf("only %d failures were tried", tried)
			}
		})
	}
}

// healthy reports whether the GPU can be allocated in spite of failed calls.
func healthy(s *gpu.Snapshot, id string) bool {
	return !slices.ContainsFunc(s.GPU(gpu.UUID(id)).Health.Causes, func(c gpu.Cause) bool { return c.Code == "GPU_UNREADABLE" })
}

// clearTransients clears the failing calls and leaves the memory error.
func clearTransients(t *testing.T, m *sim.Machine, id string) {
	t.Helper()
	clearFaults(t, m, id)
	inject(t, m, sim.Fault{GPU: id, ECC: 1})
}

// TestOneFailedCallOfTheLibrary fails each call that concerns no GPU once.
func TestOneFailedCallOfTheLibrary(t *testing.T) {
	m, id := partitioned(t, "h100x8")
	for _, kind := range []string{"UNKNOWN", "TIMEOUT", "NOT_READY", "IN_USE"} {
		for _, call := range []string{"Init", "DeviceGetCount", "SystemGetDriverVersion", "SystemGetCudaDriverVersion"} {
			t.Run(call+" "+kind, func(t *testing.T) {
				a := adapterOn(t, m)
				before := scan(t, a)
				resume, err := a.Suspend(t.Context()) // the next scan opens the driver again
				if err != nil {
					t.Fatal(err)
				}
				resume()
				inject(t, m, sim.Fault{Transient: sim.TransientError{Call: call, Error: kind, Times: 1}})
				got := scan(t, a)
				if diff := cmp.Diff(withoutMissing(before), withoutMissing(got)); diff != "" {
					t.Errorf("(-before +during):\n%s", diff)
				}
				if got.GPU(gpu.UUID(id)).Health.State == gpu.Gone {
					t.Error("the GPU is gone")
				}
				clearFaults(t, m, sim.ClearDriver)
				if diff := cmp.Diff(before, scan(t, a), anyLife()); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
			})
		}
	}
}

// TestFirstScanFails fails each call of the first scan of a process once: a partitioned GPU is never reported as unpartitioned,
// and the next scan is correct.
func TestFirstScanFails(t *testing.T) {
	for _, kind := range []string{"UNKNOWN", "GPU_IS_LOST"} {
		m, id := partitioned(t, "a100x8-40g")
		want := scan(t, adapterOn(t, m))
		calls, _ := perScan(t, m)
		for skip := range calls {
			inject(t, m, sim.Fault{GPU: id, Transient: sim.TransientError{Call: sim.AllCalls, Error: kind, Times: 1, Skip: skip}})
			a := adapterOn(t, m)
			got := scan(t, a)
			g := got.GPU(gpu.UUID(id))
			whole := g != nil && !g.MIG.Unknown && !g.MIG.Unsure && (!g.MIG.Enabled || len(g.MIG.Devices) != len(want.GPUs[0].MIG.Devices))
			if whole {
				t.Fatalf("call %d returned %s: the GPU is said to be %+v", skip, kind, g.MIG)
			}
			if cmp.Equal(want, got) && kind == "UNKNOWN" {
				clearTransients(t, m, id)
				break
			}
			if g != nil && g.MIG.Unsure && !g.MIG.Enabled && !g.MIG.Unknown {
				t.Fatalf("call %d returned %s: nothing says that the GPU may not be whole: %+v", skip, kind, g.MIG)
			}
			complete := g != nil && len(g.MIG.Devices) == len(want.GPUs[0].MIG.Devices)
			if g != nil && g.MIG.Unsure && !complete && healthy(got, id) {
				t.Fatalf("call %d returned %s: the GPU's partition is not known, and it is allocated: %+v", skip, kind, g.Health)
			}
			if diff := cmp.Diff(withoutMissing(want), withoutMissing(scan(t, a))); diff != "" {
				t.Fatalf("the scan after call %d returned %s (-want +got):\n%s", skip, kind, diff)
			}
			a.Close()
			clearTransients(t, m, id)
		}
	}
}

// TestUnreadable: after three failures in a row, a MIG change, a reset or another driver, cached values are no longer used. That a call has
// no value, after it had one, is a failure like any other.
func TestUnreadable(t *testing.T) {
	for _, kind := range []string{"TIMEOUT", "NOT_SUPPORTED"} {
		t.Run(kind, func(t *testing.T) { testUnreadable(t, kind) })
	}
}

func testUnreadable(t *testing.T, kind string) {
	const call = "GetMigMode"
	codesAt := func(t *testing.T, a *nvidia.Adapter, id string) string {
		t.Helper()
		g := scan(t, a).GPU(gpu.UUID(id))
		text := fmt.Sprintf("%d devices", len(g.MIG.Devices))
		for _, c := range g.Health.Causes {
			if c.Code == "GPU_READ_FAILED" || c.Code == "GPU_UNREADABLE" {
				text += " " + c.Code
			}
		}
		return text
	}
	expect := func(t *testing.T, a *nvidia.Adapter, id string, want ...string) {
		t.Helper()
		for i, text := range want {
			if got := codesAt(t, a, id); got != text {
				t.Errorf("scan %d: got %q; want %q", i, got, text)
			}
		}
	}
	fails := func(t *testing.T, m *sim.Machine, id string) {
		t.Helper()
		inject(t, m, sim.Fault{GPU: id, Transient: sim.TransientError{Call: call, Error: kind}})
	}
	const well, kept, out = "2 devices", "2 devices GPU_READ_FAILED", "2 devices GPU_UNREADABLE"
	t.Run("three scans", func(t *testing.T) {
		m, id := partitioned(t, "a100x8-40g")
		a := adapterOn(t, m)
		expect(t, a, id, well)
		fails(t, m, id)
		expect(t, a, id, kept, kept, out, out)
		clearTransients(t, m, id)
		expect(t, a, id, well)
		fails(t, m, id)
		expect(t, a, id, kept)
	})
	t.Run("MIG change", func(t *testing.T) {
		m, id := partitioned(t, "a100x8-40g")
		a := adapterOn(t, m)
		expect(t, a, id, well)
		fails(t, m, id)
		a.MIGChanged(gpu.UUID(id))
		expect(t, a, id, out)
	})
	t.Run("MIG change by others", func(t *testing.T) {
		m, id := partitioned(t, "a100x8-40g")
		a := adapterOn(t, m)
		device := scan(t, a).GPU(gpu.UUID(id)).MIG.Devices[0]
		if err := nvidia.NewActions(nvidia.Deps{Library: m.NVML()}).DestroyMIG(gpu.UUID(id), device.GI); err != nil {
			t.Fatal(err)
		}
		fails(t, m, id)
		expect(t, a, id, out)
	})
	t.Run("another session", func(t *testing.T) {
		m, id := partitioned(t, "a100x8-40g")
		a := adapterOn(t, m)
		expect(t, a, id, well)
		resume, err := a.Suspend(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fails(t, m, id)
		resume()
		expect(t, a, id, out)
	})
	t.Run("handle", func(t *testing.T) {
		m, id := partitioned(t, "a100x8-40g")
		a := adapterOn(t, m)
		expect(t, a, id, well)
		inject(t, m, sim.Fault{GPU: id, Transient: sim.TransientError{Call: "DeviceGetHandleByIndex", Error: kind}})
		expect(t, a, id, kept, kept, out)
		clearTransients(t, m, id)
		expect(t, a, id, well)
	})
	t.Run("count", func(t *testing.T) {
		m, id := partitioned(t, "a100x8-40g")
		a := adapterOn(t, m)
		expect(t, a, id, well)
		inject(t, m, sim.Fault{Transient: sim.TransientError{Call: "DeviceGetCount", Error: "UNKNOWN"}})
		expect(t, a, id, kept, kept, out)
		clearFaults(t, m, sim.ClearDriver)
		expect(t, a, id, well)
	})
}

// TestGoneForGood: a value that is no longer there in several scans in a row is believed to be gone, except that the MIG mode and what does
// not change while a driver runs are not.
func TestGoneForGood(t *testing.T) {
	tests := map[string]struct {
		call string
		kind string
		// want is the number of MIG devices, the number of NVLinks and the code about failed reads in each scan.
		want []string
	}{
		"links": {"GetNvLinkState", "NOT_SUPPORTED", []string{"2 12 GPU_READ_FAILED", "2 12 GPU_READ_FAILED", "2 0 ", "2 0 "}},
		"MIG devices are gone": {"GetMigDeviceHandleByIndex", "NOT_FOUND",
			[]string{"2 12 GPU_READ_FAILED", "2 12 GPU_READ_FAILED", "0 12 ", "0 12 "}},
		"MIG devices are not supported": {"GetMigDeviceHandleByIndex", "NOT_SUPPORTED",
			[]string{"2 12 GPU_READ_FAILED", "2 12 GPU_READ_FAILED", "2 12 GPU_UNREADABLE", "2 12 GPU_UNREADABLE"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, id := partitioned(t, "a100x8-40g")
			a := adapterOn(t, m)
			scan(t, a)
			inject(t, m, sim.Fault{GPU: id, Transient: sim.TransientError{Call: tc.call, Error: tc.kind}})
			var got []string
			for range tc.want {
				s := scan(t, a)
				g, codes := s.GPU(gpu.UUID(id)), ""
				for _, c := range g.Health.Causes {
					if c.Code == "GPU_READ_FAILED" || c.Code == "GPU_UNREADABLE" {
						codes += c.Code
					}
				}
				got = append(got, fmt.Sprintf("%d %d %s", len(g.MIG.Devices), s.Topology[0][1].Count, codes))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("scans (-want +got):\n%s", diff)
			}
			clearTransients(t, m, id)
			if s := scan(t, a); len(s.GPU(gpu.UUID(id)).MIG.Devices) != 2 || s.Topology[0][1].Count != 12 {
				t.Errorf("it does not come back: %+v", s)
			}
		})
	}
}
