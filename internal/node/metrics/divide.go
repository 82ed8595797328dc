package metrics

import (
	"math"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

const mebibyte = 1.0 / (1 << 20)

// division says how the memory of a shared device is divided among its holders: all fields of memory in the ratio of what their processes
// use. The ratio of two fields, such as used/(used+free) or used/total, is then for each holder that of the whole device, but for the
// rounding to MiB.
type division struct {
	owners []Owner
	// until[i] is the fraction of the used memory that the first i+1 owners use: ascending, from 0 to 1.
	until []float64
}

// division returns how the target's memory is divided. Holders whose use is not known, and processes of no pod, are in the rest.
func (on *target) division() division {
	used, _ := on.readings.Get(gpu.MemoryUsed)
	var d division
	sum := 0.0
	for _, s := range on.use.byOwner {
		if s.host || !s.memoryKnown {
			continue
		}
		sum += float64(s.memory)
		d.owners, d.until = append(d.owners, s.Owner), append(d.until, sum/max(used, 1))
	}
	if sum > used {
		return division{} // The processes were measured at another moment than the GPU.
	}
	return d
}

// parts divides bytes: it returns the part of each owner and the rest, in whole MiB, which add up to the rounded sum.
func (d division) parts(bytes float64) (parts []float64, rest float64) {
	before := 0.0
	for _, fraction := range d.until {
		until := math.Round(bytes * fraction * mebibyte)
		parts = append(parts, until-before)
		before = until
	}
	return parts, math.Round(bytes*mebibyte) - before
}

// shares writes the series of a field of memory for the holders of a shared target, and for the rest.
func shares(t *text, f *dcgm.Export, on *target) {
	whole, _ := on.readings.Get(f.Measures[0])
	used, _ := on.readings.Get(gpu.MemoryUsed)
	d := on.division()
	parts, rest := d.parts(whole)
	usedParts, usedRest := d.parts(used)
	for i, owner := range d.owners {
		if inRatio(f.Name, parts[i], usedParts[i]) {
			t.series(f.Name, parts[i], append(on.labels, podLabels(owner))...)
		}
	}
	if inRatio(f.Name, rest, usedRest) {
		t.series(f.Name, rest, on.labels...)
	}
}

// inRatio reports whether a part has a series. A part of 0 beside a used part of 0 has none, so that no query divides 0 by 0: of a
// holder that uses nothing there is the used memory alone.
func inRatio(field string, part, used float64) bool {
	return field == dcgm.MemoryUsed || part != 0 || used != 0
}

// restOf returns what a partitioned GPU has of a field of memory beside its GPU instances. It has no series when the GPU does not report
// the field, or was measured at another moment than its instances.
func restOf(f *dcgm.Export, whole *target, instances []target) (rest float64, ok bool) {
	rest, ok = f.Of(whole.readings)
	used := usedMiB(whole.readings)
	for i := range instances {
		value, _ := f.Of(instances[i].readings)
		rest -= value
		used -= usedMiB(instances[i].readings)
	}
	return rest, ok && rest >= 0 && inRatio(f.Name, rest, used)
}

func usedMiB(r *gpu.Readings) float64 {
	used, _ := r.Get(gpu.MemoryUsed)
	return math.Round(used * mebibyte)
}
