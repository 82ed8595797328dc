package ledger

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Block is the reason why a device is blocked.
type Block struct {
	// Through is the device whose holding blocks: the same one, or one of another size.
	Through gpu.DeviceKey
	// Kind is the kind of its holder.
	Kind gpu.HolderKind
	// Unseen is true when neither the kubelet nor the scheduler counts the device as allocated. If it were reported
	// healthy, pods would be scheduled that then have to be refused; so it must be reported unhealthy.
	Unseen bool
}

// blockTable has the reasons that block devices. It is never changed after it was published, so that readers need no
// lock; a new table shares the unchanged GPUs.
type blockTable struct{ gpus map[gpu.UUID]*gpuBlocks }

// gpuBlocks has the holdings of one GPU that block a device.
type gpuBlocks struct {
	whole deviceBlocks
	// parts are the MIG devices with holdings, in the order of keys: the first placed ones are by placement.
	parts  []deviceBlocks
	placed int
}

// deviceBlocks has the holdings of a GPU outside its MIG devices, or of a MIG device.
type deviceBlocks struct {
	gpu.Located
	// unshared is the holding of the device as a whole, share that of the first replica that is held.
	unshared *Holding
	share    *Holding
	// blocking are the replicas that are blocked themselves.
	blocking map[int]*Holding
	// uses are the first holding, and the first under another resource's name than that one.
	uses [2]*Holding
}

func (d *deviceBlocks) first() *Holding {
	if d.unshared != nil {
		return d.unshared
	}
	return d.share
}

// part returns a MIG device, or nil when it has no holdings.
func (c *gpuBlocks) part(unshared gpu.DeviceKey) *deviceBlocks {
	for i := range c.parts {
		if c.parts[i].Key == unshared {
			return &c.parts[i]
		}
	}
	return nil
}

// beside returns the first holding of another MIG device that overlaps with a MIG device, or nil. Without a key by
// placement there is none, and no placement is looked up.
func (c *gpuBlocks) beside(device gpu.Located, placement func(gpu.DeviceKey) gpu.Placement) *Holding {
	parts := c.parts
	if !device.Key.Placement.Known() {
		parts = parts[:c.placed]
	}
	if len(parts) == 0 {
		return nil
	}
	if own := c.part(device.Key); own != nil && !device.At.Known() {
		device.At = own.At
	}
	device = fromScan(device, placement)
	for i := range parts {
		if p := &parts[i]; p.Key != device.Key && fromScan(p.Located, placement).Overlaps(device) {
			return p.first()
		}
	}
	return nil
}

// fromScan looks up the placement of a MIG device with a UUID in the last scan, unless it is known.
func fromScan(device gpu.Located, placement func(gpu.DeviceKey) gpu.Placement) gpu.Located {
	if device.Key.MIG != "" && !device.At.Known() && placement != nil {
		device.At = placement(device.Key)
	}
	return device
}

func (d *deviceBlocks) add(h *Holding) {
	if !d.At.Known() {
		d.At = h.Placement
	}
	if h.Key.Share == 0 {
		d.unshared = h
	} else {
		if d.share == nil {
			d.share = h
		}
		if h.blocksOwn() {
			if d.blocking == nil {
				d.blocking = map[int]*Holding{}
			}
			d.blocking[h.Key.Share] = h
		}
	}
	switch {
	case h.Holder.Resource == "":
	case d.uses[0] == nil:
		d.uses[0] = h
	case d.uses[1] == nil && d.uses[0].Holder.Resource != h.Holder.Resource:
		d.uses[1] = h
	}
}

// newBlockTable needs records sorted by key.
func newBlockTable(order []gpu.DeviceKey, records map[gpu.DeviceKey]*record) *blockTable {
	t := &blockTable{gpus: map[gpu.UUID]*gpuBlocks{}}
	for len(order) > 0 {
		mine := onGPU(order, order[0].GPU)
		t.gpus[order[0].GPU] = newGPUBlocks(mine, records)
		order = order[len(mine):]
	}
	return t
}

func newGPUBlocks(order []gpu.DeviceKey, records map[gpu.DeviceKey]*record) *gpuBlocks {
	c := &gpuBlocks{}
	for _, key := range order {
		device := &c.whole
		if !key.Whole() {
			if n := len(c.parts); n == 0 || c.parts[n-1].Key != key.Unshared() {
				c.parts = append(c.parts, deviceBlocks{Located: gpu.Located{Key: key.Unshared()}})
				if key.Placement.Known() {
					c.placed++
				}
			}
			device = &c.parts[len(c.parts)-1]
		}
		device.add(&records[key].Holding)
	}
	return c
}

// onGPU is the part of the order that is about one GPU.
func onGPU(order []gpu.DeviceKey, device gpu.UUID) []gpu.DeviceKey {
	compare := func(key gpu.DeviceKey, device gpu.UUID) int { return strings.Compare(string(key.GPU), string(device)) }
	from, _ := slices.BinarySearchFunc(order, device, compare)
	length := slices.IndexFunc(order[from:], func(key gpu.DeviceKey) bool { return key.GPU != device })
	if length < 0 {
		return order[from:]
	}
	return order[from : from+length]
}

// by answers as inWay does, for a pod. The placements of MIG devices that the holdings do not have are looked up.
func (t *blockTable) by(resource string, want *gpu.Located, placement func(gpu.DeviceKey) gpu.Placement) (Block, bool) {
	c := t.gpus[want.Key.GPU]
	if c == nil {
		return Block{}, false
	}
	device := &c.whole
	if !want.Key.Whole() {
		if h := c.whole.first(); h != nil {
			return unseen(h), true
		}
		unshared := gpu.Located{Key: want.Key.Unshared(), At: want.At}
		if h := c.beside(unshared, placement); h != nil {
			return unseen(h), true
		}
		if device = c.part(unshared.Key); device == nil {
			return Block{}, false
		}
	} else if len(c.parts) > 0 {
		return unseen(c.parts[0].first()), true
	}
	return device.by(resource, want.Key.Share)
}

func unseen(h *Holding) Block { return Block{Through: h.Key, Kind: h.Holder.Kind, Unseen: true} }

// by returns the reason that blocks a device, other than holdings of other parts of the GPU.
func (d *deviceBlocks) by(resource string, share int) (Block, bool) {
	other, own := d.share, d.unshared
	if share > 0 {
		other, own = d.unshared, d.blocking[share]
	}
	if other != nil {
		return unseen(other), true
	}
	for _, h := range d.uses {
		if h != nil && otherUse(h.Holder.Resource, resource) {
			return unseen(h), true
		}
	}
	if own == nil || !own.blocksOwn() {
		return Block{}, false
	}
	return Block{Through: own.Key, Kind: own.Holder.Kind, Unseen: own.Holder.Kind != gpu.HolderOrphan || own.Uncounted}, true
}

// covers reports whether the table blocks exactly what a pod's holding blocks.
func (t *blockTable) covers(resource string, key gpu.DeviceKey) bool {
	c := t.gpus[key.GPU]
	if c == nil {
		return false
	}
	device := &c.whole
	if !key.Whole() {
		if device = c.part(key.Unshared()); device == nil {
			return false
		}
	}
	held := device.unshared != nil && !device.unshared.blocksOwn()
	if key.Share > 0 {
		held = device.share != nil && device.blocking[key.Share] == nil
	}
	use := ""
	if device.uses[0] != nil {
		use = device.uses[0].Holder.Resource
	}
	return held && use == resource
}

// complete looks up the placement of a MIG device with a UUID, unless it is known: a holder of the device, or of a
// replica of it, may know it, else the last scan.
func (l *Ledger) complete(device gpu.Located) gpu.Located {
	if device.Key.MIG == "" || device.At.Known() {
		return device
	}
	for _, other := range onGPU(l.order, device.Key.GPU) {
		if h := &l.records[other].Holding; other.MIG == device.Key.MIG && h.Placement.Known() {
			device.At = h.Placement
			return device
		}
	}
	return fromScan(device, l.deps.Placement)
}

// otherUse reports whether two names are known and different.
func otherUse(a, b string) bool { return a != b && a != "" && b != "" }

// inWay reports whether a holding blocks a device for a holder; the rules are in the package comment.
func (l *Ledger) inWay(h *Holding, holder gpu.Holder, want gpu.Located) bool {
	overlap := func() bool {
		if h.Key.Placement.Known() || want.Key.Placement.Known() {
			return l.complete(h.Located()).Overlaps(l.complete(want))
		}
		return h.Key.Overlaps(want.Key)
	}
	switch {
	case holder.Kind != gpu.HolderPod:
		return !h.Holder.Same(holder) && overlap()
	case h.Key == want.Key && h.blocksOwn():
		return true
	case h.Key != want.Key && overlap():
		return true
	}
	return h.Key.Unshared() == want.Key.Unshared() && otherUse(h.Holder.Resource, holder.Resource)
}

// BlockedBy returns why a device cannot be allocated to a pod as a resource: any holding on a device of another size on
// the same hardware, any but a pod's on the device itself, and one of the device as another resource. It takes no lock,
// allocates no memory, and its cost does not depend on the number of holdings.
func (l *Ledger) BlockedBy(resource string, key gpu.DeviceKey) (Block, bool) {
	return l.blocks.Load().by(resource, &gpu.Located{Key: key}, l.deps.Placement)
}

// Blocked returns all holdings that block their own device, by key. The caller owns the map.
func (l *Ledger) Blocked() map[gpu.DeviceKey]Holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	blocked := map[gpu.DeviceKey]Holding{}
	for key, r := range l.records {
		if r.blocksOwn() {
			blocked[key] = r.clone()
		}
	}
	return blocked
}

// publish makes the records visible to BlockedBy.
func (l *Ledger) publish() { l.blocks.Store(newBlockTable(l.order, l.records)) }

// publishPods makes a pod's new holdings visible. It has a cost only if they block devices that were not blocked: the
// first replica of a device does, the next does not.
func (l *Ledger) publishPods(resource string, keys []gpu.DeviceKey) {
	table := l.blocks.Load()
	var fresh map[gpu.UUID]*gpuBlocks
	for _, key := range keys {
		if table.covers(resource, key) {
			continue
		}
		if fresh == nil {
			fresh = maps.Clone(table.gpus)
			table = &blockTable{gpus: fresh}
		}
		fresh[key.GPU] = newGPUBlocks(onGPU(l.order, key.GPU), l.records)
	}
	if fresh != nil {
		l.blocks.Store(table)
	}
}
