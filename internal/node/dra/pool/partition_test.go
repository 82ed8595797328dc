package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/mig/migtest"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
)

// partitionable returns one GPU of each kind that the simulator can partition, with MIG on.
func partitionable(t testing.TB) map[string]gpu.GPU {
	t.Helper()
	kinds := map[string]gpu.GPU{}
	for _, profile := range []string{"a30x4", "a100x8-40g", "a100x8-80g", "h100x8", "h200x8", "b200x8", "gb200x4", "rtxpro6000x8"} {
		one := nvidiatest.New(t, profile).Scan().GPUs[0]
		if len(one.MIG.Geometry.Profiles) == 0 {
			t.Fatalf("%s has no MIG profiles", profile)
		}
		one.MIG.Enabled = true
		kinds[profile] = one
	}
	return kinds
}

// alone returns the slices of a node with one dynamic GPU.
func alone(t testing.TB, g gpu.GPU) Result {
	t.Helper()
	s := &gpu.Snapshot{GPUs: []gpu.GPU{g}, Topology: gpu.NewTopology(1)}
	return build(t, s, settings(s, 0), nil)
}

// TestEveryPlacementOnce compares the devices with the placements of the planner.
func TestEveryPlacementOnce(t *testing.T) {
	for name, g := range partitionable(t) {
		t.Run(name, func(t *testing.T) {
			result := alone(t, g)
			want := map[mig.Placed]int{}
			for _, p := range g.MIG.Geometry.Profiles {
				for _, start := range p.Starts {
					want[mig.Placed{Profile: p.Name, Start: start, Size: p.Size}] = 1
				}
			}
			if !g.MIG.ModeNeedsReset {
				want[mig.Placed{}] = 1
			}
			got := map[mig.Placed]int{}
			for _, slice := range result.Slices {
				for _, device := range slice.Spec.Devices {
					stands, known := result.Devices[device.Name]
					if !known || stands.GPU != g.UUID {
						t.Fatalf("%s stands for %+v", device.Name, stands)
					}
					got[stands.Placed]++
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || len(result.Devices) != len(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// tally adds up what devices take and reports whether it is within the counters, as the scheduler does.
func tally(sets []resourceapi.CounterSet, devices []resourceapi.Device) bool {
	left := map[string]map[string]*resource.Quantity{}
	for _, set := range sets {
		left[set.Name] = map[string]*resource.Quantity{}
		for name, counter := range set.Counters {
			value := counter.Value.DeepCopy()
			left[set.Name][name] = &value
		}
	}
	for _, device := range devices {
		for _, consumes := range device.ConsumesCounters {
			for name, counter := range consumes.Counters {
				left[consumes.CounterSet][name].Sub(counter.Value)
			}
		}
	}
	for _, set := range left {
		for _, value := range set {
			if value.Sign() < 0 {
				return false
			}
		}
	}
	return true
}

// TestCountersAreMIG compares the counters with the planner: sets of devices that MIG permits fit, others do not. Each round adds the
// devices of a GPU in an order of its own, those that fit; together with every single refusal these are sets of all sizes.
func TestCountersAreMIG(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for name, g := range partitionable(t) {
		t.Run(name, func(t *testing.T) {
			result := alone(t, g)
			var devices []resourceapi.Device
			var sets []resourceapi.CounterSet
			for _, slice := range result.Slices {
				devices, sets = append(devices, slice.Spec.Devices...), append(sets, slice.Spec.SharedCounters...)
			}
			fit, refused := 0, 0
			for range 200 {
				random.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
				var set []resourceapi.Device
				var placements []mig.Placed
				for _, device := range devices {
					more, placed := append(slices.Clone(set), device), append(slices.Clone(placements), result.Devices[device.Name].Placed)
					got, want := tally(sets, more), migtest.Possible(&g, placed)
					if got != want {
						t.Fatalf("%v: the counters permit it: %v, the planner: %v", placed, got, want)
					}
					if got {
						set, placements = more, placed
						fit++
					} else {
						refused++
					}
				}
			}
			if fit < 200 || refused < 200 {
				t.Errorf("%d fit and %d do not: the comparison proves little", fit, refused)
			}
		})
	}
}

// firstFit takes devices of a profile as the scheduler's allocator does, in the order of the list.
func firstFit(result Result, taken []resourceapi.Device, profile string) (resourceapi.Device, bool) {
	var sets []resourceapi.CounterSet
	for _, slice := range result.Slices {
		sets = append(sets, slice.Spec.SharedCounters...)
	}
	for _, slice := range result.Slices {
		for _, device := range slice.Spec.Devices {
			if text(&device, AttributeProfile) != profile || slices.ContainsFunc(taken, func(d resourceapi.Device) bool { return d.Name == device.Name }) {
				continue
			}
			if tally(sets, append(slices.Clone(taken), device)) {
				return device, true
			}
		}
	}
	return resourceapi.Device{}, false
}

// TestFirstFitKeepsLargeProfiles allocates some small devices on a GPU and looks whether a large one still fits. In the opposite order
// it does not.
func TestFirstFitKeepsLargeProfiles(t *testing.T) {
	g := partitionable(t)["h100x8"]
	allocate := func(result Result, profiles ...string) (taken []resourceapi.Device) {
		for _, profile := range profiles {
			if device, ok := firstFit(result, taken, profile); ok {
				taken = append(taken, device)
			}
		}
		return taken
	}
	for name, profiles := range map[string][]string{
		"three 1g, then 4g":        {"1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"},
		"a 1g and a 1g+me, a 3g":   {"1g.10gb", "1g.10gb+me", "3g.40gb"},
		"a 3g, then 4g":            {"3g.40gb", "4g.40gb"},
		"a 2g and a 1g, then 4g":   {"2g.20gb", "1g.10gb", "4g.40gb"},
		"two 1g of 20 GB, then 4g": {"1g.20gb", "1g.20gb", "4g.40gb"},
	} {
		t.Run(name, func(t *testing.T) {
			result := alone(t, g)
			if taken := allocate(result, profiles...); len(taken) != len(profiles) {
				t.Errorf("only %d of %v fit", len(taken), profiles)
			}
			slices.Reverse(result.Slices[0].Spec.Devices)
			if taken := allocate(result, profiles...); len(taken) == len(profiles) && profiles[len(profiles)-1] == "4g.40gb" {
				t.Errorf("%v fit in the opposite order: the order does not matter here", profiles)
			}
		})
	}
}
