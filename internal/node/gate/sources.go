package gate

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Sources are what the facts of the gate are read from. All but OnBus and the runtime's configuration are read from memory.
type Sources struct {
	BootID string
	Vendor string
	// WithoutCDI is true where containers get their devices in another way.
	WithoutCDI bool
	// OnBus returns the number of GPUs on the PCI bus, and Runtime why the container runtime does not inject CDI devices.
	OnBus    func() int
	Runtime  func() *gate.Stop
	Hardware func() *gpu.Snapshot
	Excluded func() map[gpu.UUID]bool
	// Spec returns what the last comparison of the CDI spec found; known is false before the first one.
	Spec func() (fingerprint string, problems []gpu.Cause, known bool)
	// Units are the devices in use or to be advertised, and Injectable reports whether the CDI spec has one of them.
	Units      func() []offer.Unit
	Injectable func(vendor string, key gpu.DeviceKey) bool
	// Registered reports whether the kubelet has registered a resource, and why not if that is known; Published whether the API server has
	// ResourceSlices of the node.
	Registered func(resource string) (bool, string)
	Published  func() bool
}

// Observe returns the present inputs.
func (s Sources) Observe() Inputs {
	snapshot := s.Hardware().Of(s.Vendor)
	in := Inputs{
		BootID: s.BootID, OnBus: s.OnBus(), Snapshot: snapshot, Vendor: s.Vendor, Excluded: s.Excluded(),
		WithoutCDI: s.WithoutCDI,
	}
	if !s.WithoutCDI {
		in.Runtime = s.Runtime()
	}
	units := s.units(snapshot)
	in.Unregistered, in.Advertised = s.advertised(units)
	if fingerprint, problems, known := s.Spec(); known {
		in.Spec = &Spec{Fingerprint: fingerprint, Problems: problems}
		for _, unit := range units {
			if !s.Injectable(s.Vendor, unit.Key) {
				in.Spec.Missing = append(in.Spec.Missing, string(unit.Key.Device()))
			}
		}
	}
	return in
}

// units returns the units of the vendor.
func (s Sources) units(snapshot *gpu.Snapshot) []offer.Unit {
	return slices.DeleteFunc(slices.Clone(s.Units()), func(u offer.Unit) bool { return snapshot.GPU(u.Key.GPU) == nil })
}

// advertised returns what is not advertised yet, sorted, with the reason where it is known, and how many names are.
func (s Sources) advertised(units []offer.Unit) (unregistered []string, count int) {
	const slicesOfNode = "the ResourceSlices of the node"
	done := map[string]bool{}
	for _, unit := range units {
		name := cmp.Or(map[bool]string{true: slicesOfNode}[unit.Use.API == offer.DRA], unit.Use.Resource)
		if done[name] {
			continue
		}
		done[name] = true
		ok, why := false, ""
		if name == slicesOfNode {
			ok = s.Published()
		} else {
			ok, why = s.Registered(name)
		}
		switch {
		case ok:
			count++
		case why != "":
			unregistered = append(unregistered, name+": "+why)
		default:
			unregistered = append(unregistered, name)
		}
	}
	slices.Sort(unregistered)
	return unregistered, count
}
