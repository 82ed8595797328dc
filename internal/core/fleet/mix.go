package fleet

import (
	"cmp"
	"slices"
)

// Typical is a shape of the workload mix.
type Typical struct {
	// Shape has no memory: pods that differ in nothing else are one typical shape.
	Shape Shape
	// Weight counts its pods; or any other measure of how frequent it is.
	Weight int64
	// Memory is the sum of what these pods request, weighted like them, in MiB.
	Memory int64
	// Demand is what one of these pods takes of GPUs, in thousandths; 0 stands for the shape's Demand.
	Demand int64
}

// Mix is the workload that future pods are expected to be like.
type Mix []Typical

// TypicalShapes returns the most frequent shapes that together are at least the covered fraction of the pods, most frequent
// first. Among equally frequent ones the one with more CPU, a larger share, more GPUs, later models comes first.
func TypicalShapes(pods []Shape, covered float64) Mix {
	counts := map[Shape]*Typical{}
	var mix Mix
	for _, pod := range pods {
		key := pod
		key.Memory = 0
		if counts[key] == nil {
			counts[key] = &Typical{Shape: key}
		}
		counts[key].Weight++
		counts[key].Memory += pod.Memory
	}
	for _, typical := range counts {
		mix = append(mix, *typical)
	}
	slices.SortFunc(mix, func(a, b Typical) int {
		return cmp.Or(-cmp.Compare(a.Weight, b.Weight), -cmp.Compare(a.Shape.CPU, b.Shape.CPU), -cmp.Compare(a.Shape.Share, b.Shape.Share),
			-cmp.Compare(a.Shape.GPUs, b.Shape.GPUs), -cmp.Compare(a.Shape.Models.names, b.Shape.Models.names),
			-cmp.Compare(a.Shape.Resource, b.Shape.Resource), -cmp.Compare(a.Shape.Traffic, b.Shape.Traffic))
	})
	want, have := covered*float64(len(pods)), int64(0)
	for i := range mix {
		if have += mix[i].Weight; float64(have) >= want {
			return mix[:i+1]
		}
	}
	return mix
}
