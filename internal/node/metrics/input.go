package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Input is everything that a page is made of.
type Input struct {
	// Node is the node's name.
	Node string
	// Snapshot is the inventory with health states; it determines which GPUs there are.
	Snapshot *gpu.Snapshot
	// Sample is the last measurement; GPUs and devices that are not in Snapshot are left out.
	Sample   gpu.Sample
	Holdings []Holding
	// Claims are the holdings of ResourceClaims; their pods are in Holdings too.
	Claims []gpu.Holding
	XIDs   []XIDCount
	// DCGMFields are what the page has under dcgm-exporter's names; none without them.
	DCGMFields []dcgm.Export
	// DCGMHostnameLabel is the label of the node's name under dcgm-exporter's names; empty for that of its releases, Hostname.
	DCGMHostnameLabel string
	// Vendors are those whose GPUs Snapshot can have. They say which GPUs have series under dcgm-exporter's names.
	Vendors []gpu.Traits
	// Owners are the pods of processes, by PID as the sample has it. A process without one is on the node itself.
	Owners map[int]Owner
}

// Holding is a device that a pod's container holds, or that a pod has by a ResourceClaim.
type Holding struct {
	gpu.Holding
	// Mode says how the device is shared: exclusive, timeslicing or mps.
	Mode string
	// Owner is who the device's figures are about. Of a claim's pod it has no container: any of them may use the device.
	Owner Owner
}

// HoldingsOf returns the holdings of a device: that of a pod, or one for each pod of a claim. Pods of which no name is known have none.
func HoldingsOf(h gpu.Holding, mode string) []Holding {
	var list []Holding
	for _, owner := range OwnersOf(h) {
		if owner.Pod != "" {
			list = append(list, Holding{Holding: h, Mode: mode, Owner: owner})
		}
	}
	return list
}

// Owner is a container of a pod.
type Owner struct {
	Namespace string
	Pod       string
	Container string
	PodUID    string
}

// OwnersOf returns the container of a pod's holding, or the pods of a claim; none of another holder.
func OwnersOf(h gpu.Holding) []Owner {
	switch {
	case h.Holder.OfPod():
		return []Owner{{Namespace: h.Holder.Namespace, Pod: h.Holder.Name, Container: h.Holder.Container, PodUID: h.Holder.PodUID}}
	case h.Holder.Kind != gpu.HolderClaim:
		return nil
	}
	var owners []Owner
	for _, pod := range h.Pods {
		owners = append(owners, Owner{Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.UID})
	}
	return owners
}

func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Container, b.Container))
}

// XIDCount is how often a GPU reported an XID since the agent started.
type XIDCount struct {
	GPU   gpu.UUID
	XID   uint64
	Count uint64
	// Last is when it was last reported.
	Last time.Time
	// Recent are the times of the last reports, ascending: all within XIDWindow before Last, or the last 1,000 of them.
	Recent []time.Time
}

// view is the input, joined by GPU and device.
type view struct {
	in   Input
	gpus []gpuView
}

// gpuView is a GPU with everything known about it.
type gpuView struct {
	*gpu.GPU
	// sample is empty for a GPU that was not measured.
	sample  gpu.GPUSample
	devices []deviceView
	// use is who uses the whole GPU; with MIG, each device has its own.
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
	byOwner  []ownerUse
}

// ownerUse is one owner's use of a device.
type ownerUse struct {
	Owner
	// host is true for processes that belong to no pod.
	host      bool
	processes int
	// memoryKnown and activityKnown are true when they include every process of the owner.
	memoryKnown   bool
	activityKnown bool
	memory        uint64
	sm            float64
	bandwidth     float64
	encode        float64
	decode        float64
}

// shared reports whether the device's own readings are those of several holders.
func (u *use) shared() bool {
	return slices.ContainsFunc(u.holdings, func(h Holding) bool { return h.Key.Share > 0 || h.Owner != u.holdings[0].Owner })
}

// holder returns the only owner of a device that is not shared.
func (u *use) holder() (Owner, bool) {
	if len(u.holdings) == 0 || u.shared() {
		return Owner{}, false
	}
	return u.holdings[0].Owner, true
}

// join assigns holdings, readings and processes to their devices, in the order of the snapshot.
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
			return cmp.Or(gpu.CompareKeys(a.Key, b.Key), compareOwners(a.Owner, b.Owner), cmp.Compare(a.Holder.Resource, b.Holder.Resource))
		})
	}
	xids := map[gpu.UUID][]XIDCount{}
	for _, x := range in.XIDs {
		xids[x.GPU] = append(xids[x.GPU], x)
	}
	v.gpus = make([]gpuView, len(in.Snapshot.GPUs))
	for i := range in.Snapshot.GPUs {
		c := &v.gpus[i]
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

// divide assigns each process to its owner. A holder without processes uses nothing, and that is known.
func (u *use) divide(sample *gpu.GPUSample, owners map[int]Owner, here func(gpu.ProcessSample) bool) {
	if !sample.ProcessesKnown {
		return
	}
	find := func(owner Owner, host bool) *ownerUse {
		for i := range u.byOwner {
			if u.byOwner[i].Owner == owner && u.byOwner[i].host == host {
				return &u.byOwner[i]
			}
		}
		u.byOwner = append(u.byOwner, ownerUse{Owner: owner, host: host, memoryKnown: true, activityKnown: sample.ActivityKnown})
		return &u.byOwner[len(u.byOwner)-1]
	}
	for _, h := range u.holdings {
		find(h.Owner, false)
	}
	for _, p := range sample.Processes {
		if !here(p) {
			continue
		}
		owner, known := owners[p.PID]
		s := find(u.byClaim(owner), !known)
		s.processes++
		s.memoryKnown = s.memoryKnown && p.MemoryKnown
		s.memory += p.MemoryBytes
		s.sm, s.bandwidth = s.sm+p.SM, s.bandwidth+p.Memory
		s.encode, s.decode = s.encode+p.Encoder, s.decode+p.Decoder
	}
	slices.SortFunc(u.byOwner, func(a, b ownerUse) int {
		if a.host != b.host {
			return cmp.Compare(oneIf(a.host), oneIf(b.host))
		}
		return compareOwners(a.Owner, b.Owner)
	})
}

// byClaim returns the owner of a process as a claim of its pod names it, without the container; otherwise the owner.
func (u *use) byClaim(owner Owner) Owner {
	for _, h := range u.holdings {
		if h.Holder.Kind == gpu.HolderClaim && owner.PodUID != "" && h.Owner.PodUID == owner.PodUID {
			return h.Owner
		}
	}
	return owner
}

func oneIf(set bool) float64 {
	if set {
		return 1
	}
	return 0
}
