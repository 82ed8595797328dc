package pool

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
)

// TestBuildSequence changes a node at random, with the slices of the last step published, and checks each step.
func TestBuildSequence(t *testing.T) {
	machines := map[string]*gpu.Snapshot{}
	for _, profile := range []string{"h100x8", "a100x16", "a30x4", "mixed", "rtxpro6000x8", "v100x8-hybrid-mesh"} {
		machines[profile] = nvidiatest.New(t, profile).Scan()
	}
	rapid.Check(t, func(t *rapid.T) {
		machine := machines[rapid.SampledFrom([]string{"h100x8", "a100x16", "a30x4", "mixed", "rtxpro6000x8", "v100x8-hybrid-mesh"}).Draw(t, "machine")]
		s, with := clone(machine), settings(machine)
		var last Result
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			changed := step(t, machine, &s, &with)
			result := Build(s, with, last.Slices)
			if err := Validate(result.Slices); err != nil {
				t.Fatalf("%s: %v", changed, err)
			}
			if again := Build(s, with, result.Slices); !equality.Semantic.DeepEqual(again, result) {
				t.Fatalf("%s: the published slices are not kept", changed)
			}
			checkPlaces(t, result)
			if !slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return g.Health.State == gpu.Gone }) {
				fresh := Build(s, with, nil)
				if a, b := deviceNames(result), deviceNames(fresh); !slices.Equal(a, b) {
					t.Fatalf("%s: the order is\n%v, want\n%v", changed, a, b)
				}
				if changes := Compare(last.Slices, result.Slices); changes.NewGeneration && !slices.Equal(sizes(result), sizes(fresh)) {
					t.Fatalf("%s: a new generation has slices of %v, want %v", changed, sizes(result), sizes(fresh))
				}
			}
			last = result
		}
	})
}

// sizes returns the number of devices and of counter sets of each slice.
func sizes(r Result) (list []int) {
	for _, slice := range r.Slices {
		list = append(list, len(slice.Spec.Devices), len(slice.Spec.SharedCounters))
	}
	return list
}

func deviceNames(r Result) (list []string) {
	for _, slice := range r.Slices {
		for _, device := range slice.Spec.Devices {
			list = append(list, device.Name)
		}
	}
	return list
}

// checkPlaces reports a GPU with devices in two slices, and a device that is not known by name.
func checkPlaces(t *rapid.T, result Result) {
	place := map[gpu.UUID]int{}
	devices := 0
	for i, slice := range result.Slices {
		for _, device := range slice.Spec.Devices {
			devices++
			stands, known := result.Devices[device.Name]
			if !known {
				t.Fatalf("%s is not in the list of devices", device.Name)
			}
			if at, seen := place[stands.GPU]; seen && at != i {
				t.Fatalf("%s has devices in slices %d and %d", stands.GPU, at, i)
			}
			place[stands.GPU] = i
		}
	}
	if devices != len(result.Devices) {
		t.Fatalf("%d devices are published, and %d have a name", devices, len(result.Devices))
	}
}

// step changes one thing.
func step(t *rapid.T, machine *gpu.Snapshot, s **gpu.Snapshot, with *Settings) string {
	next := clone(*s)
	defer func() { *s = next }()
	if len(next.GPUs) == 0 {
		next = clone(machine)
		return "all GPUs return"
	}
	at := rapid.IntRange(0, len(next.GPUs)-1).Draw(t, "GPU")
	g := &next.GPUs[at]
	switch kind := rapid.SampledFrom([]string{"health", "lost", "remove", "return", "serve", "dynamic", "leave", "mode", "gate"}).Draw(t, "kind"); kind {
	case "health":
		g.Health.State = rapid.SampledFrom([]gpu.State{"", gpu.Healthy, gpu.Degraded, gpu.Draining, gpu.Unhealthy, gpu.NeedsReset}).Draw(t, "state")
		return kind
	case "lost":
		lose(next, at)
		return kind
	case "remove":
		next = unlink(next, at)
		return kind
	case "return":
		next = clone(machine)
		return kind
	case "serve", "dynamic":
		with.GPUs[g.UUID] = Use{DynamicMIG: kind == "dynamic"}
		return kind
	case "leave":
		delete(with.GPUs, g.UUID)
		return kind
	case "mode":
		g.MIG.Enabled = g.MIG.Capable && !g.MIG.Enabled
		return kind
	default:
		with.WholeOnly = !with.WholeOnly
		return kind
	}
}

// TestNamesAreStable changes what may change of a node and looks for devices with another name.
func TestNamesAreStable(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	with := settings(s, upTo(8)...)
	want := build(t, s, with, nil).Devices
	for name, change := range map[string]func(s *gpu.Snapshot) *gpu.Snapshot{
		"a restart": func(s *gpu.Snapshot) *gpu.Snapshot { return s },
		"a driver upgrade": func(s *gpu.Snapshot) *gpu.Snapshot {
			for i := range s.GPUs {
				s.GPUs[i].Driver.Version, s.GPUs[i].Minor = "595.10", 7-i
			}
			return s
		},
		"another GPU is removed": func(s *gpu.Snapshot) *gpu.Snapshot {
			s = unlink(s, 0)
			for i := range s.GPUs {
				s.GPUs[i].Index, s.GPUs[i].Minor = i, i
			}
			return s
		},
		"other PCI bus IDs": func(s *gpu.Snapshot) *gpu.Snapshot {
			for i := range s.GPUs {
				s.GPUs[i].PCI.Bus++
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed := change(clone(s))
			for device, stands := range build(t, changed, with, nil).Devices {
				if want[device] != stands {
					t.Errorf("%s stands for %+v, before for %+v", device, stands, want[device])
				}
			}
		})
	}
}
