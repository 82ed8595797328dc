package offer

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// card is a GPU that can be named, with its MIG devices that can be.
type card struct {
	*gpu.GPU
	// position is the card's place in the snapshot.
	position int
	// parts are in the order of their index.
	parts []*gpu.MIGDevice
}

func (c *card) index() string { return strconv.Itoa(c.Index) }

func (c *card) partIndex(part *gpu.MIGDevice) string {
	return c.index() + ":" + strconv.Itoa(part.Index)
}

func (c *card) key(part *gpu.MIGDevice) gpu.DeviceKey {
	if part == nil {
		return gpu.DeviceKey{GPU: c.UUID}
	}
	return gpu.DeviceKey{GPU: c.UUID, MIG: part.UUID}
}

// unitsOf are the units on the card's silicon: the whole first, then by index. Units of
// silicon that is gone are left out, as is a second unit of the same device.
func (c *card) unitsOf(units []Unit) []Unit {
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

// survey lists the cards of a node in the order of their index. A device without a UUID
// cannot be named, and a second one with the same UUID cannot be told from the first;
// neither is listed, and left hears of it.
func survey(snapshot *gpu.Snapshot, left func(kind, index string, id gpu.UUID)) []card {
	if snapshot == nil {
		return nil
	}
	cards := make([]card, 0, len(snapshot.GPUs))
	seen := make(map[gpu.UUID]bool, len(snapshot.GPUs))
	fresh := func(id gpu.UUID) bool {
		ok := id != "" && !seen[id]
		seen[id] = true
		return ok
	}
	for i := range snapshot.GPUs {
		c := card{GPU: &snapshot.GPUs[i], position: i}
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
		cards = append(cards, c)
	}
	slices.SortStableFunc(cards, func(a, b card) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return cards
}

// unheard is for those who do not ask what was left out.
func unheard(string, string, gpu.UUID) {}
