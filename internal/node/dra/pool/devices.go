package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// published is a GPU with what is published of it.
type published struct {
	*gpu.GPU
	dynamic bool
	devices []resourceapi.Device
	// names are what the devices stand for, in the same order.
	names []Device
	// set is the counter set, or nil for a GPU whose devices take nothing.
	set *resourceapi.CounterSet
	// reserve is the number of devices for which a new slice keeps capacity.
	reserve int
	// refused says why the settings are not met, or is empty.
	refused string
}

// publish returns what is published of a GPU.
func (s *Settings) publish(g *gpu.GPU, island string) published {
	p := published{GPU: g}
	use := s.GPUs[g.UUID]
	switch refused := unnameable(g.UUID); {
	case refused != "":
		p.refused = refused
		return p
	case g.MIG.Unknown:
		p.refused = "the driver did not report whether the GPU is partitioned; see its health"
		return p
	}
	common := describe(g, island)
	switch {
	case use.DynamicMIG && !g.MIG.Capable:
		p.refused = "dynamicMIG: the GPU cannot be partitioned, and is published whole; leave it out of the rule"
	case use.DynamicMIG:
		p.dynamic = true
		s.addDynamic(&p, common)
		return p
	}
	if g.MIG.Enabled {
		s.addPartitions(&p, common)
		return p
	}
	s.addWhole(&p, common, nil)
	return p
}

// addDynamic adds the whole GPU and each placement. Where a change of the mode takes a reset of the GPU, which no claim may cause,
// it adds only what the present mode permits.
func (s *Settings) addDynamic(p *published, common attributes) {
	geometry := &p.MIG.Geometry
	placements := mig.Placements(geometry)
	whole := !p.MIG.ModeNeedsReset || !p.MIG.Enabled
	switch {
	case len(placements) == 0:
		p.refused = "dynamicMIG: the driver lists no MIG profiles; run the agent privileged, or update the driver (R535 and older " +
			"list them only while MIG is on)"
	case s.WholeOnly && whole:
		p.refused = "dynamicMIG: the API server drops shared counters, so the GPU is published whole; switch the feature gate " +
			"DRAPartitionableDevices on"
	case s.WholeOnly:
		p.refused = "dynamicMIG: the API server drops shared counters, and the GPU cannot be used whole while MIG is on; switch the " +
			"feature gate DRAPartitionableDevices on, or turn MIG off, which resets the GPU"
	}
	if p.refused != "" {
		if whole {
			s.addWhole(p, common, nil)
		}
		return
	}
	set := counterSet(p.GPU)
	p.set, p.reserve = &set, 1+len(placements)
	if whole {
		s.addWhole(p, common, []resourceapi.DeviceCounterConsumption{{CounterSet: set.Name, Counters: maps.Clone(set.Counters)}})
	}
	if !p.MIG.Enabled && p.MIG.ModeNeedsReset {
		return
	}
	limits := mig.Limits(geometry)
	for _, placed := range placements {
		profile := geometry.Profile(placed.Profile)
		device := s.partition(p.GPU, common, placed)
		device.Capacity = capacity(profile.MemoryBytes, profile.Attributes)
		device.ConsumesCounters = takes(set.Name, limits, placed)
		p.add(device, Device{GPU: p.UUID, Placed: placed})
	}
}

// addWhole adds the whole GPU. A dynamic GPU has the capacities that claims for MIG devices compare, too.
func (s *Settings) addWhole(p *published, common attributes, consumes []resourceapi.DeviceCounterConsumption) {
	device := resourceapi.Device{
		Name: gpuName(p.UUID), Attributes: maps.Clone(common), Capacity: capacity(p.MemoryBytes, gpu.MIGAttributes{}),
		Taints: s.taints(p.Health), ConsumesCounters: consumes,
	}
	if p.dynamic {
		device.Capacity = capacity(p.MemoryBytes, most(&p.MIG.Geometry))
	}
	setText(device.Attributes, AttributeType, TypeGPU)
	setText(device.Attributes, AttributeUUID, string(p.UUID))
	setText(device.Attributes, AttributeHealth, string(p.Health.State.Class()))
	p.add(device, Device{GPU: p.UUID})
}

// addPartitions adds the MIG devices that a GPU has now. Those that are not the whole of their GPU instance are left out, since
// several of them would have one placement.
func (s *Settings) addPartitions(p *published, common attributes) {
	parts := slices.Clone(p.MIG.Devices)
	slices.SortFunc(parts, func(a, b gpu.MIGDevice) int {
		return cmp.Or(compareBool(a.Health.State.Class() == gpu.Degraded, b.Health.State.Class() == gpu.Degraded), a.Start-b.Start)
	})
	for i := range parts {
		part := &parts[i]
		shared := slices.ContainsFunc(p.MIG.Devices, func(o gpu.MIGDevice) bool { return o.GI == part.GI && o.UUID != part.UUID })
		switch {
		case part.Profile == "" || part.Size == 0:
			p.refused = fmt.Sprintf("the driver does not report the profile or the placement of MIG device %s", part.UUID)
			continue
		case shared:
			p.refused = fmt.Sprintf("MIG device %s shares its GPU instance with others: use one compute instance of the whole size", part.UUID)
			continue
		}
		placed := mig.Placed{Profile: part.Profile, Start: part.Start, Size: part.Size}
		device := s.partition(p.GPU, common, placed)
		device.Capacity = capacity(part.MemoryBytes, part.Attributes)
		setText(device.Attributes, AttributeUUID, string(part.UUID))
		p.add(device, Device{GPU: p.UUID, MIG: part.UUID, Placed: placed})
	}
	if len(parts) == 0 {
		p.refused = "MIG is on, and the GPU has no MIG devices: apply a layout, turn MIG off, or set dynamicMIG"
	}
}

// partition returns a MIG device without its capacity.
func (s *Settings) partition(g *gpu.GPU, common attributes, placed mig.Placed) resourceapi.Device {
	health := verdict(g, placed)
	device := resourceapi.Device{Name: migName(g.UUID, placed), Attributes: maps.Clone(common), Taints: s.taints(health)}
	setText(device.Attributes, AttributeType, TypeMIG)
	setText(device.Attributes, AttributeParentUUID, string(g.UUID))
	setText(device.Attributes, AttributeProfile, placed.Profile)
	setText(device.Attributes, AttributeHealth, string(health.State.Class()))
	return device
}

// verdict returns the health of the MIG device at a placement: its own while it exists and has one, otherwise that of the GPU.
func verdict(g *gpu.GPU, placed mig.Placed) gpu.Health {
	for i := range g.MIG.Devices {
		part := &g.MIG.Devices[i]
		if part.Profile == placed.Profile && part.Start == placed.Start && part.Health.State != "" {
			return part.Health
		}
	}
	return g.Health
}

func (p *published) add(device resourceapi.Device, stands Device) {
	p.devices, p.names = append(p.devices, device), append(p.names, stands)
	p.reserve = max(p.reserve, len(p.devices))
}
