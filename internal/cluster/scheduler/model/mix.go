package model

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

const (
	// mixPods is how many of the pods that were seen last make the mix.
	mixPods = 4096
	// mixCovered is how many of the pods its typical shapes cover, mixShapes how many shapes these are at most.
	mixCovered = 0.95
	mixShapes  = 128
	// The mix is computed again after mixLeast pods, then whenever half as many were seen again, and at the latest after mixMost.
	mixLeast, mixMost = 32, 2048
)

// mix is the workload that was seen lately.
type mix struct {
	pods []seen
	next int
	uids map[types.UID]bool
	// since counts the pods since the measure was made.
	since   int
	typical fleet.Mix
	current *fleet.Measure
}

type seen struct {
	pod   types.UID
	shape fleet.Shape
}

// see counts a pod by its first request, which has its CPU and memory.
func (m *mix) see(pod types.UID, requests []fleet.Shape) {
	if m.uids == nil {
		m.uids = map[types.UID]bool{}
	}
	if m.uids[pod] || len(requests) == 0 {
		return
	}
	m.uids[pod] = true
	m.since++
	if len(m.pods) < mixPods {
		m.pods = append(m.pods, seen{pod, requests[0]})
		return
	}
	delete(m.uids, m.pods[m.next].pod)
	m.pods[m.next] = seen{pod, requests[0]}
	m.next = (m.next + 1) % mixPods
}

// measure returns the measure of the mix, and whether it is another one than before.
func (m *mix) measure(resources fleetview.Resources) (*fleet.Measure, bool) {
	if m.current != nil && m.since < min(mixMost, max(mixLeast, len(m.pods)/2)) {
		return m.current, false
	}
	m.since = 0
	shapes := make([]fleet.Shape, len(m.pods))
	for i := range m.pods {
		shapes[i] = m.pods[i].shape
	}
	typical := resources.Typical(shapes, mixCovered)
	typical = typical[:min(len(typical), mixShapes)]
	if m.current != nil && slices.Equal(typical, m.typical) {
		return m.current, false
	}
	m.typical = typical
	return fleet.NewMeasure(typical), true
}
