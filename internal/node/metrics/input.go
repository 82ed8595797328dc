package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Input is everything that a page is made of.
type Input struct {
	// Node is the node's name.
	Node string
	// Snapshot is the inventory with its verdicts; the identity of every card is taken from it.
	Snapshot *gpu.Snapshot
	// Sample is the last pass; cards and devices that are not in Snapshot are left out.
	Sample   gpu.Sample
	Holdings []Holding
	XIDs     []XIDCount
	// DCGMHostnameLabel is the label of the node's name under dcgm-exporter's names; empty for HostnameReleased.
	DCGMHostnameLabel string
	// Owners are the pods of processes, by PID as the sample has it. A process without one is on the node itself.
	Owners map[int]Owner
}

// Holding is a device that a pod's container holds.
type Holding struct {
	gpu.Holding
	// Mode says how the device is shared: exclusive, timeslicing or mps.
	Mode string
}

func (h Holding) owner() Owner { return OwnerOf(h.Holder) }

// Owner is a container of a pod.
type Owner struct {
	Namespace, Pod, Container, PodUID string
}

// OwnerOf is the container of a pod that holds devices.
func OwnerOf(h gpu.Holder) Owner {
	return Owner{Namespace: h.Namespace, Pod: h.Name, Container: h.Container, PodUID: h.PodUID}
}

func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Container, b.Container))
}

// XIDCount is how often a card reported an XID since the count began.
type XIDCount struct {
	GPU   gpu.UUID
	XID   uint64
	Count uint64
	// Last is when it was reported last.
	Last time.Time
}

// view is the input, joined by card and device.
type view struct {
	in    Input
	cards []cardView
}

// cardView is a card with all that is known of it.
type cardView struct {
	*gpu.GPU
	// sample is empty for a card that was not asked.
	sample  gpu.GPUSample
	devices []deviceView
	// use is who uses the whole card; with MIG, each device has its own.
	use  use
	xids []XIDCount
}

// deviceView is a MIG device.
type deviceView struct {
	*gpu.MIGDevice
	sample gpu.DeviceSample
	use    use
}

// use is who holds a device and what the processes on it do.
type use struct {
	holdings []Holding
	shares   []share
}

// share is one owner's part of a device.
type share struct {
	Owner
	// host is true for processes that belong to no pod.
	host      bool
	processes int
	// memoryKnown and activityKnown tell whether every process of the owner is accounted for.
	memoryKnown, activityKnown    bool
	memory                        uint64
	sm, bandwidth, encode, decode float64
}

// shared tells whether the device's own readings are more than one holder's.
func (u *use) shared() bool {
	return slices.ContainsFunc(u.holdings, func(h Holding) bool { return h.Key.Share > 0 || h.owner() != u.holdings[0].owner() })
}

// holder is the one owner of a device that is not shared.
func (u *use) holder() (Owner, bool) {
	if len(u.holdings) == 0 || u.shared() {
		return Owner{}, false
	}
	return u.holdings[0].owner(), true
}

// join puts together what belongs together, in the order of the snapshot.
func join(in Input) *view {
	v := &view{in: in}
	if in.Snapshot == nil {
		return v
	}
	holdings := map[gpu.UUID][]Holding{}
	for _, h := range in.Holdings {
		holdings[h.Key.Device()] = append(holdings[h.Key.Device()], h)
	}
	for _, held := range holdings {
		slices.SortFunc(held, func(a, b Holding) int {
			return cmp.Or(gpu.CompareKeys(a.Key, b.Key), compareOwners(a.owner(), b.owner()), cmp.Compare(a.Holder.Resource, b.Holder.Resource))
		})
	}
	xids := map[gpu.UUID][]XIDCount{}
	for _, x := range in.XIDs {
		xids[x.GPU] = append(xids[x.GPU], x)
	}
	v.cards = make([]cardView, len(in.Snapshot.GPUs))
	for i := range in.Snapshot.GPUs {
		c := &v.cards[i]
		c.GPU = &in.Snapshot.GPUs[i]
		c.xids = xids[c.UUID]
		slices.SortFunc(c.xids, func(a, b XIDCount) int { return cmp.Compare(a.XID, b.XID) })
		if found := in.Sample.GPU(c.UUID); found != nil {
			c.sample = *found
		}
		c.use = use{holdings: holdings[c.UUID]}
		c.use.divide(&c.sample, in.Owners, func(p gpu.ProcessSample) bool { return p.GI == gpu.NoInstance })
		for j := range c.MIG.Devices {
			d := deviceView{MIGDevice: &c.MIG.Devices[j], use: use{holdings: holdings[c.MIG.Devices[j].UUID]}}
			for _, one := range c.sample.Devices {
				if one.UUID == d.UUID {
					d.sample = one
				}
			}
			d.use.divide(&c.sample, in.Owners, func(p gpu.ProcessSample) bool { return p.GI == d.GI && p.CI == d.CI })
			c.devices = append(c.devices, d)
		}
	}
	return v
}

// divide gives each process to its owner. A holder without processes uses nothing, which is known too.
func (u *use) divide(sample *gpu.GPUSample, owners map[int]Owner, here func(gpu.ProcessSample) bool) {
	if !sample.ProcessesKnown {
		return
	}
	find := func(owner Owner, host bool) *share {
		for i := range u.shares {
			if u.shares[i].Owner == owner && u.shares[i].host == host {
				return &u.shares[i]
			}
		}
		u.shares = append(u.shares, share{Owner: owner, host: host, memoryKnown: true, activityKnown: sample.ActivityKnown})
		return &u.shares[len(u.shares)-1]
	}
	for _, h := range u.holdings {
		find(h.owner(), false)
	}
	for _, p := range sample.Processes {
		if !here(p) {
			continue
		}
		owner, known := owners[p.PID]
		s := find(owner, !known)
		s.processes++
		s.memoryKnown = s.memoryKnown && p.MemoryKnown
		s.memory += p.MemoryBytes
		s.sm, s.bandwidth = s.sm+p.SM, s.bandwidth+p.Memory
		s.encode, s.decode = s.encode+p.Encoder, s.decode+p.Decoder
	}
	slices.SortFunc(u.shares, func(a, b share) int {
		if a.host != b.host {
			return cmp.Compare(oneIf(a.host), oneIf(b.host))
		}
		return compareOwners(a.Owner, b.Owner)
	})
}

func oneIf(set bool) float64 {
	if set {
		return 1
	}
	return 0
}
