package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Build returns what a node publishes. before are the slices that are published now, of any driver and in any order, or nil. They
// decide how the devices are divided over slices, how NVLink islands are called, and which island a GPU that does not respond
// belongs to; nothing else. A change that needs a new generation of the pool divides the devices as if nothing were published, which
// also removes counter sets that no device takes any more.
//
// The names of slices say their order alone: the API server has names of its own for them, which begin in the same way.
func Build(snapshot *gpu.Snapshot, settings Settings, before []resourceapi.ResourceSlice) Result {
	s := &settings
	f := formerOf(ofPool(before, s.driver(), s.pool()))
	islands := islandsOf(snapshot, f.islands)
	result := Result{Devices: map[string]Device{}}
	var gpus []published
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		if _, served := s.GPUs[g.UUID]; !served {
			continue
		}
		p := s.publish(g, islands[g.UUID])
		if slices.ContainsFunc(gpus, func(other published) bool { return other.UUID == g.UUID }) {
			p = published{GPU: g, refused: "it has the UUID of another GPU, so their devices would have one name"}
		}
		if p.refused != "" {
			result.Refused = append(result.Refused, Refusal{GPU: g.UUID, Reason: p.refused})
		}
		for k := range p.devices {
			result.Devices[p.devices[k].Name] = p.names[k]
		}
		if len(p.devices) > 0 {
			gpus = append(gpus, p)
		}
	}
	list := ordered(gpus, islands)
	units, sets := unitsOf(list), setsOf(list)
	result.Slices = s.slices(pack(units, sets))
	if l, ok := keep(units, sets, f); ok {
		kept := s.slices(l)
		if changes := Compare(before, kept); !changes.NewGeneration {
			result.Slices = kept
		}
	}
	return result
}

// setsOf returns the counter sets, by name.
func setsOf(gpus []*published) []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, p := range gpus {
		if p.set != nil {
			sets = append(sets, *p.set)
		}
	}
	slices.SortFunc(sets, func(a, b resourceapi.CounterSet) int { return cmp.Compare(a.Name, b.Name) })
	return sets
}

// slices returns the objects of a layout: the slices of devices, then those of counters.
func (s *Settings) slices(l layout) []resourceapi.ResourceSlice {
	var list []resourceapi.ResourceSlice
	for _, units := range l.devices {
		var devices []resourceapi.Device
		for _, u := range units {
			devices = append(devices, u.devices...)
		}
		list = append(list, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: devices}})
	}
	for _, sets := range l.sets {
		list = append(list, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{SharedCounters: sets}})
	}
	for i := range list {
		list[i].ObjectMeta = metav1.ObjectMeta{Name: s.sliceName(i, len(list))}
		spec := &list[i].Spec
		spec.Driver, spec.NodeName = s.driver(), &s.Node
		spec.Pool = resourceapi.ResourcePool{Name: s.pool(), Generation: s.Generation, ResourceSliceCount: int64(len(list))}
	}
	return list
}

// sliceName returns a name that begins as Kubernetes' library for DRA drivers begins names: with the position, in as many
// hexadecimal digits as the largest one needs, at least five.
func (s *Settings) sliceName(position, slices int) string {
	digits := max(5, len(strconv.FormatInt(int64(slices-1), 16)))
	return fmt.Sprintf("%0*x-%s-%s", digits, position, s.driver(), s.Node)
}
