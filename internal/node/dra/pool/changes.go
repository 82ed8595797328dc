package pool

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Changes are the requests to the API server that turn the published slices of a pool into the wanted ones.
type Changes struct {
	// Update and Create are positions in the wanted slices, and Delete the names of published slices.
	Update []int
	Create []int
	Delete []string
	// NewGeneration is true when the pool needs a new generation. Every slice is then written, and the scheduler ignores the pool until
	// all of them are.
	NewGeneration bool
}

// Touched returns the number of slices that are written or deleted.
func (c *Changes) Touched() int { return len(c.Update) + len(c.Create) + len(c.Delete) }

// Compare returns what changes, as Kubernetes' library for DRA drivers does it: slices are matched by their order, and the generation
// stays as long as a single update is enough.
//
// before are the slices that are published now, of any driver and in any order; slices of an older generation are deleted. want are
// those of Build, which returns at least one. The time at which a taint was added is not compared: the API server sets it.
func Compare(before, want []resourceapi.ResourceSlice) Changes {
	if len(want) == 0 {
		return Changes{}
	}
	old := ofPool(before, want[0].Spec.Driver, want[0].Spec.Pool.Name)
	var changes Changes
	matched := min(len(old), len(want))
	for i := range matched {
		if !equal(&old[i].Spec, &want[i].Spec) {
			changes.Update = append(changes.Update, i)
		}
	}
	for i := matched; i < len(want); i++ {
		changes.Create = append(changes.Create, i)
	}
	for i := range before {
		spec := &before[i].Spec
		current := slices.ContainsFunc(old[:matched], func(one resourceapi.ResourceSlice) bool { return one.Name == before[i].Name })
		if spec.Driver == want[0].Spec.Driver && spec.Pool.Name == want[0].Spec.Pool.Name && !current {
			changes.Delete = append(changes.Delete, before[i].Name)
		}
	}
	changes.NewGeneration = len(changes.Create) > 0 || len(changes.Update) > 1 ||
		want[0].Spec.Pool.Generation > 0 && len(old) > 0 && want[0].Spec.Pool.Generation > old[0].Spec.Pool.Generation
	if changes.NewGeneration {
		changes.Update = changes.Update[:0]
		for i := range matched {
			changes.Update = append(changes.Update, i)
		}
	}
	return changes
}

// equal reports whether a slice has the wanted content, the generation left aside.
func equal(old, want *resourceapi.ResourceSliceSpec) bool {
	if old.Pool.ResourceSliceCount != want.Pool.ResourceSliceCount || len(old.Devices) != len(want.Devices) ||
		!equality.Semantic.DeepEqual(old.SharedCounters, want.SharedCounters) {
		return false
	}
	for i := range old.Devices {
		a, b := old.Devices[i], want.Devices[i]
		a.Taints, b.Taints = timeless(a.Taints), timeless(b.Taints)
		if !equality.Semantic.DeepEqual(a, b) {
			return false
		}
	}
	return true
}

// timeless returns taints without the times at which they were added.
func timeless(taints []resourceapi.DeviceTaint) []resourceapi.DeviceTaint {
	list := make([]resourceapi.DeviceTaint, len(taints))
	for i, taint := range taints {
		taint.TimeAdded = nil
		list[i] = taint
	}
	return list
}
