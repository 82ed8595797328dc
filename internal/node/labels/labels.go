package labels

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// The types of the inputs are declared in a package that the packages of vendors can import.
type (
	Labels = labelset.Labels
	Host   = labelset.Host
	VGPU   = labelset.VGPU
)

// Vendor computes the labels about the GPUs of one vendor. A package of the vendor implements it; without one, the GPUs are
// counted among the healthy or unhealthy ones and have no other labels.
type Vendor interface {
	// Name returns the vendor's name, as in gpu.GPU.
	Name() string
	// Labels returns the labels about the vendor's GPUs. Keys and values must be valid.
	Labels(in *labelset.Input) labelset.Labels
	// VirtualGPU reads from the PCI configuration space of a GPU whether it is virtual. It returns an error when the
	// bytes do not show it.
	VirtualGPU(space []byte) (labelset.VGPU, error)
}

// berthDomain is the domain of labels that apply to GPUs of any vendor.
const berthDomain = "berth.dev/"

// Input has the data from which labels are computed.
type Input struct {
	Snapshot *gpu.Snapshot
	// Vendors compute labels about their GPUs. Of two that compute the same key, the first wins.
	Vendors []Vendor
	// Units are how the devices are advertised.
	Units []offer.Unit
	// ResourceName and MIGStrategy are those of the offer's settings.
	ResourceName string
	MIGStrategy  string
	Host         Host
	// Timestamp is when the agent started; zero for no label about it.
	Timestamp time.Time
}

// Build computes the labels of a node; none for a node without GPUs.
func Build(in Input) Labels {
	labels := Labels{}
	if in.Snapshot == nil || len(in.Snapshot.GPUs) == 0 {
		return labels
	}
	healthy := 0
	for i := range in.Snapshot.GPUs {
		if in.Snapshot.GPUs[i].Health.OK() {
			healthy++
		}
	}
	labels[berthDomain+"gpu.healthy"] = strconv.Itoa(healthy)
	labels[berthDomain+"gpu.unhealthy"] = strconv.Itoa(len(in.Snapshot.GPUs) - healthy)
	common := labelset.Input{
		Uses: uses(in.Units), ResourceName: cmp.Or(in.ResourceName, offer.DefaultResource), MIGStrategy: in.MIGStrategy,
		MPS: len(offer.MPSUnits(in.Units)) > 0, Host: in.Host, Timestamp: in.Timestamp,
	}
	for _, vendor := range in.Vendors {
		of := common
		of.Snapshot = part(in.Snapshot, vendor.Name())
		if len(of.Snapshot.GPUs) == 0 {
			continue
		}
		for key, value := range vendor.Labels(&of) {
			if _, taken := labels[key]; !taken {
				labels[key] = value
			}
		}
	}
	return labels
}

// uses converts units. If a device has two units, the first is used.
func uses(units []offer.Unit) map[gpu.DeviceKey]labelset.Use {
	all := map[gpu.DeviceKey]labelset.Use{}
	for _, unit := range units {
		if _, twice := all[unit.Key]; !twice {
			all[unit.Key] = labelset.Use{Resource: unit.Use.Resource, Sharing: sharing(unit.Use.Mode), Replicas: unit.Use.Replicas}
		}
	}
	return all
}

func sharing(mode offer.Mode) string {
	switch mode {
	case offer.Unknown:
		return ""
	case offer.Whole:
		return labelset.SharingNone
	case offer.MPS:
		return labelset.SharingMPS
	}
	return labelset.SharingTime
}

// part returns the part of a snapshot that is about one vendor.
func part(s *gpu.Snapshot, vendor string) *gpu.Snapshot {
	own := func(g *gpu.GPU) bool { return g.Vendor == vendor }
	if !slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return !own(&g) }) {
		return s
	}
	of := &gpu.Snapshot{Vendors: s.Vendors}
	for i := range s.GPUs {
		if !own(&s.GPUs[i]) {
			continue
		}
		of.GPUs = append(of.GPUs, s.GPUs[i])
		if len(s.Topology) != len(s.GPUs) {
			continue
		}
		var row []gpu.Link
		for k := range s.GPUs {
			if own(&s.GPUs[k]) {
				row = append(row, s.Topology[i][k])
			}
		}
		of.Topology = append(of.Topology, row)
	}
	return of
}
