package mig

import (
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// GPUOf converts a GPU of a snapshot. holders returns the holders of a device or of a replica of it, as phrases for
// people in a fixed order; for a whole GPU it must leave out the holders of its MIG devices. The MIG devices of one GPU
// instance become one Instance.
func GPUOf(g *gpu.GPU, holders func(gpu.DeviceKey) []string) GPU {
	c := GPU{
		UUID: g.UUID, Index: g.Index, Product: g.Product, DeviceID: g.DeviceID, SubsystemID: g.SubsystemID,
		Capable: g.MIG.Capable, Enabled: g.MIG.Enabled, ModeNeedsReset: g.MIG.ModeNeedsReset,
		Geometry: g.MIG.Geometry,
		Holders:  holders(gpu.DeviceKey{GPU: g.UUID}),
	}
	position := map[int]int{}
	for i := range g.MIG.Devices {
		device := &g.MIG.Devices[i]
		names := holders(gpu.DeviceKey{GPU: g.UUID, MIG: device.UUID})
		if at, known := position[device.GI]; known {
			one := &c.Instances[at]
			one.Siblings = append(one.Siblings, device.UUID)
			one.Holders = slices.Clone(one.Holders)
			for _, name := range names {
				if !slices.Contains(one.Holders, name) {
					one.Holders = append(one.Holders, name)
				}
			}
			continue
		}
		position[device.GI] = len(c.Instances)
		c.Instances = append(c.Instances, Instance{
			UUID: device.UUID, GI: device.GI, Profile: device.Profile, Start: device.Start, Size: device.Size, Holders: names,
		})
	}
	for _, empty := range g.MIG.Empty {
		if _, device := position[empty.GI]; device {
			continue // an instance with a device is not empty
		}
		c.Instances = append(c.Instances, Instance{GI: empty.GI, Profile: empty.Profile, Start: empty.Start, Size: empty.Size})
	}
	return c
}
