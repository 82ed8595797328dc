package metrics

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Unanswered returns the listed fields of which no GPU or GPU instance of the sample has a value. Only GPUs count of which everything
// was read; ok is false when there are none.
func Unanswered(in Input) (fields []dcgm.Export, ok bool) {
	var readings []*gpu.Readings
	v := join(in)
	for i := range v.gpus {
		c := &v.gpus[i]
		has := slices.ContainsFunc(in.Vendors, func(t gpu.Traits) bool { return t.DCGM && t.Name == c.Vendor })
		if !has || len(c.sample.Sources) == 0 || slices.ContainsFunc(c.sample.Sources, func(s gpu.SourceStatus) bool { return !s.OK }) {
			continue
		}
		readings = append(readings, &c.sample.Readings)
		for j := range c.devices {
			readings = append(readings, &c.devices[j].sample.Readings)
		}
	}
	for i := range in.DCGMFields {
		f := &in.DCGMFields[i]
		if f.Listed && f.Of != nil && !slices.ContainsFunc(readings, func(r *gpu.Readings) bool { _, known := f.Of(r); return known }) {
			fields = append(fields, *f)
		}
	}
	return fields, len(readings) > 0
}
