package allocatable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// twoVendors returns a node whose settings are about NVIDIA's GPUs, with another vendor beside them.
func twoVendors(t *testing.T) *world {
	w := newWorld(t)
	for i := range w.snapshot.GPUs {
		w.snapshot.GPUs[i].Vendor = gpu.NVIDIA
	}
	w.snapshot.Vendors = append(w.snapshot.Vendors, gpu.VendorState{Name: "other", Driver: gpu.Driver{Version: "1"}})
	w.snapshot.GPUs = append(w.snapshot.GPUs, gpu.GPU{UUID: "EX-0", Vendor: "other"})
	w.settings = twoVendorSettings(offer.Settings{})
	return w
}

func twoVendorSettings(s offer.Settings) offer.Settings {
	s.Vendor, s.OtherVendors = gpu.NVIDIA, map[string]string{"other": "other.example/gpu"}
	return s
}

// without returns the snapshot while a vendor's first scan has not returned, or has found no driver.
func without(s *gpu.Snapshot, vendor string, scanned bool) *gpu.Snapshot {
	out := &gpu.Snapshot{}
	for _, state := range s.Vendors {
		if state.Name != vendor {
			out.Vendors = append(out.Vendors, state)
		} else if scanned {
			out.Vendors = append(out.Vendors, gpu.VendorState{Name: vendor, Scanned: true})
		}
	}
	for i := range s.GPUs {
		if s.GPUs[i].Vendor != vendor {
			out.GPUs = append(out.GPUs, s.GPUs[i])
		}
	}
	return out
}

// TestSilentVendor checks that the devices of a vendor that is late or has no driver keep their use, and that those of
// the other are settled.
func TestSilentVendor(t *testing.T) {
	const (
		nvidia = "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/gpu (unshared)"
		shared = "GPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2)"
		other  = "EX-0 other.example/gpu (unshared)"
	)
	rule := twoVendorSettings(share(offer.TimeSlicing, 2))
	tests := map[string]struct {
		event func(*world)
		// restarted makes the event one that a new agent finds at its first settlement.
		restarted bool
		want      string
	}{
		"the other is late at the start": {
			event: func(w *world) { w.snapshot, w.settings = without(w.snapshot, "other", false), rule }, restarted: true,
			want: shared + "\n" + other,
		},
		"NVIDIA is late at the start": {
			event: func(w *world) { w.snapshot, w.settings = without(w.snapshot, gpu.NVIDIA, false), rule }, restarted: true,
			want: other + "\n" + nvidia,
		},
		"the other is late, and the record is lost": {
			event: func(w *world) {
				w.snapshot = without(w.snapshot, "other", false)
				w.held[gpu.DeviceKey{GPU: "EX-0"}] = "ns/a"
				w.resource = "other.example/gpu"
				if err := os.WriteFile(filepath.Join(w.dir, FileName), []byte("{"), 0o600); err != nil {
					w.t.Fatal(err)
				}
			}, restarted: true,
			want: nvidia + "\n" + other,
		},
		"the other's driver is gone": {
			event: func(w *world) { w.snapshot, w.settings = without(w.snapshot, "other", true), rule },
			want:  shared + "\n" + other,
		},
		"NVIDIA's driver is gone": {
			event: func(w *world) { w.snapshot, w.settings = without(w.snapshot, gpu.NVIDIA, true), rule },
			want:  other + "\n" + nvidia,
		},
		"NVIDIA's driver is gone, and its GPUs are lost": {
			event: func(w *world) {
				next := *w.snapshot
				next.Vendors = []gpu.VendorState{{Name: gpu.NVIDIA, Scanned: true}, next.Vendors[1]}
				w.snapshot, w.settings = &next, rule
			},
			want: other + "\n" + nvidia,
		},
		"a GPU of the other is removed": {
			event: func(w *world) {
				next := *w.snapshot
				next.GPUs = next.GPUs[:2]
				w.snapshot = &next
			},
			want: nvidia,
		},
		"a rule that no GPU of NVIDIA meets while its driver is gone": {
			event: func(w *world) {
				w.snapshot = without(w.snapshot, gpu.NVIDIA, true)
				w.settings = twoVendorSettings(offer.Settings{GPUs: []offer.GPURule{{Select: offer.GPUSelect{UUID: []string{"GPU-a"}},
					Sharing: offer.Sharing{Mode: offer.MPS, Replicas: 1000}}}})
			},
			want: other + "\n" + nvidia,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := twoVendors(t)
			whole := w.snapshot
			d := w.open()
			d.Begin()
			// Both GPUs have the index 0: the settings that select it apply to NVIDIA's.
			if diff := cmp.Diff("EX-0 other.example/gpu (unshared)\nGPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/gpu (unshared)", uses(d)); diff != "" {
				t.Fatalf("with both (-want +got):\n%s", diff)
			}
			w.set(func() { tc.event(w) })
			if tc.restarted {
				d = w.open()
				d.Begin()
			} else {
				d.Settle()
			}
			if diff := cmp.Diff(tc.want, uses(d)); diff != "" {
				t.Errorf("in force (-want +got):\n%s", diff)
			}
			if problems := w.problems["offers"]; len(problems) > 0 {
				t.Errorf("problems of settings that concern no GPU now: %v", problems)
			}
			// The kept use is settled as soon as its vendor responds.
			w.set(func() { w.snapshot, w.settings = whole, rule })
			d.Settle()
			if diff := cmp.Diff("EX-0 other.example/gpu (unshared)\nGPU-a nvidia.com/gpu (unshared)\nGPU-b nvidia.com/shared (time-sliced x2)", uses(d)); diff != "" {
				t.Errorf("after both answer again (-want +got):\n%s", diff)
			}
		})
	}
}
