package dra

import (
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// TestDegradedAreLast allocates random claims with the scheduler's allocator on a node with two islands, whole or dynamic GPUs, some of
// them degraded and some held. A claim gets a degraded GPU only when no set of healthy ones fits, which is tried by taking the degraded
// ones out of the slices. Claims for linked GPUs are tried with degraded GPUs in one island: the allocator tries an island to its end, so
// with degraded GPUs in both it can take one of the first although the second has enough healthy ones (docs/dra.md).
func TestDegradedAreLast(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	linked := templateOfDocument(t).Spec.Spec
	taken := 0
	for try := range 150 {
		s := twoIslands(t)
		islands := 1 + random.IntN(2)
		for i := range s.GPUs {
			if (islands == 2 || i/4 == try%2) && random.IntN(3) == 0 {
				s.GPUs[i].Health.State = gpu.Degraded
			}
		}
		with := settings(s, random.IntN(3) == 0)
		result := build(t, s, with)
		all, some := newCluster(t, result.Slices), newCluster(t, withoutDegraded(result.Slices))
		for range random.IntN(5) {
			if names, ok := all.allocate(t, claim(request{class: pool.DefaultDriver, count: 1 + random.IntN(2)})); ok {
				for _, name := range names {
					some.allocated.Insert(structured.MakeDeviceID(pool.DefaultDriver, nodeName, name))
				}
			}
		}
		wanted := claim(request{class: pool.DefaultDriver, count: 1 + random.IntN(4)})
		if islands == 1 && random.IntN(2) == 0 {
			wanted = &resourceapi.ResourceClaim{Spec: *linked.DeepCopy()}
			wanted.UID = "linked"
			wanted.Spec.Devices.Requests[0].Exactly.Count = int64(2 + random.IntN(3))
		}
		names, ok := all.try(t, wanted)
		got := indices(s, result, names)
		degraded := slices.ContainsFunc(got, func(i int) bool { return s.GPUs[i].Health.State == gpu.Degraded })
		if healthyNames, fits := some.try(t, wanted); fits && (!ok || degraded) {
			t.Fatalf("try %d: the claim got the GPUs %v, of which some are degraded, while %v fit", try, got, indices(s, result, healthyNames))
		}
		if degraded {
			taken++
		}
	}
	if taken == 0 {
		t.Error("no claim got a degraded GPU, so the test shows nothing")
	}
	t.Logf("%d claims got a degraded GPU, since no set of healthy ones was free", taken)
}

// withoutDegraded returns the slices without the devices of degraded GPUs.
func withoutDegraded(list []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
	var left []resourceapi.ResourceSlice
	for i := range list {
		one := list[i].DeepCopy()
		one.Spec.Devices = slices.DeleteFunc(one.Spec.Devices, func(d resourceapi.Device) bool {
			health := d.Attributes[pool.AttributeHealth].StringValue
			return health != nil && *health == string(gpu.Degraded)
		})
		left = append(left, *one)
	}
	return left
}
