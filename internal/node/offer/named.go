package offer

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// namedGPU is a GPU with a unique UUID, with its MIG devices that have one.
type namedGPU struct {
	*gpu.GPU
	// position is the GPU's position in the snapshot.
	position int
	// parts are sorted by their index.
	parts []*gpu.MIGDevice
}

func (c *namedGPU) index() string { return strconv.Itoa(c.Index) }

func (c *namedGPU) partIndex(part *gpu.MIGDevice) string {
	return c.index() + ":" + strconv.Itoa(part.Index)
}

func (c *namedGPU) key(part *gpu.MIGDevice) gpu.DeviceKey {
	if part == nil {
		return gpu.DeviceKey{GPU: c.UUID}
	}
	return gpu.DeviceKey{GPU: c.UUID, MIG: part.UUID}
}

// unitsOf returns the units of the GPU: the whole GPU first, then MIG devices by index. Units of devices that no longer
// exist are left out, as is a second unit of the same device.
func (c *namedGPU) unitsOf(units []Unit) []Unit {
	var mine []Unit
	pick := func(key gpu.DeviceKey) {
		if i := slices.IndexFunc(units, func(u Unit) bool { return u.Key == key }); i >= 0 {
			mine = append(mine, units[i])
		}
	}
	pick(c.key(nil))
	for _, part := range c.parts {
		pick(c.key(part))
	}
	return mine
}

// listNamed lists the GPUs of a node sorted by index. A device without a UUID cannot be named, and a second one with
// the same UUID cannot be distinguished from the first; neither is listed, and left is called for it.
func listNamed(snapshot *gpu.Snapshot, left func(kind, index string, id gpu.UUID)) []namedGPU {
	if snapshot == nil {
		return nil
	}
	gpus := make([]namedGPU, 0, len(snapshot.GPUs))
	seen := make(map[gpu.UUID]bool, len(snapshot.GPUs))
	fresh := func(id gpu.UUID) bool {
		ok := id != "" && !seen[id]
		seen[id] = true
		return ok
	}
	for i := range snapshot.GPUs {
		c := namedGPU{GPU: &snapshot.GPUs[i], position: i}
		if !fresh(c.UUID) {
			left("GPU", c.index(), c.UUID)
			continue
		}
		for j := range c.MIG.Devices {
			part := &c.MIG.Devices[j]
			if !fresh(part.UUID) {
				left("MIG device", c.partIndex(part), part.UUID)
				continue
			}
			c.parts = append(c.parts, part)
		}
		slices.SortStableFunc(c.parts, func(a, b *gpu.MIGDevice) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
		})
		gpus = append(gpus, c)
	}
	slices.SortStableFunc(gpus, func(a, b namedGPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return gpus
}

// ignoreUnnamed is for callers that do not need the devices that were left out.
func ignoreUnnamed(string, string, gpu.UUID) {}
