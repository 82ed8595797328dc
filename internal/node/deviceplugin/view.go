package deviceplugin

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// view is all that the calls for one resource need. It is built after each change, and never changes itself.
type view struct {
	resource string
	devices  []device
	byID     map[string]int
	// control are the device nodes that each container gets besides its devices' own.
	control []*pluginapi.DeviceSpec
	// chooser picks among positions; nil where the devices are not one per position.
	chooser chooser
	// at is the device of each position.
	at [placement.MaxGPUs]int
	// groups chooses where they are not.
	groups *groupChooser
	// refuseMany refuses a container more than one device.
	refuseMany bool
	features   Features
	// traits are the names of the vendor of the devices; zero while no device's GPU is known.
	traits gpu.Traits
	// plain is true when the devices are injected as device nodes alone.
	plain bool
	// answers are those for one device each, encoded, made when they are first needed.
	answers []atomic.Pointer[[]byte]
}

// device is a device of the offer with the parts of its answers.
type device struct {
	// Device has the position of the GPU in the snapshot of the view; -1 when it has none.
	offer.Device
	// visible is its name for the container runtime: UUID or index.
	visible  string
	cdiName  string
	specs    []*pluginapi.DeviceSpec
	topology *pluginapi.TopologyInfo
	// vanished is since when the device is no longer offered; zero while it is.
	vanished time.Time
}

// viewer builds views.
type viewer struct {
	vendors  []gpu.Traits
	strategy Strategy
	cdiName  func(string) string
	mark     func(string, []gpu.DeviceKey) (name, value string)
	linger   time.Duration
	// plain are the vendors whose GPUs are injected as device nodes alone.
	plain map[string]bool
}

// build makes the view of one offer. Devices of the previous view (nil for none) that are no longer offered follow the offered ones for
// as long as linger says.
func (w *viewer) build(o offer.Offer, state State, chooser chooser, previous *view, now time.Time) *view {
	v := &view{
		resource: o.Resource, byID: make(map[string]int, len(o.Devices)),
		refuseMany: o.RefuseMany, features: state.Features,
	}
	snapshot := state.Snapshot
	if snapshot == nil {
		snapshot = &gpu.Snapshot{}
	}
	for i := range o.Devices {
		if _, double := v.byID[o.Devices[i].ID]; !double {
			v.add(w.prepare(&o.Devices[i], snapshot))
		}
	}
	v.traits = w.traitsOf(v.devices, snapshot, previous)
	v.plain = w.plain[v.traits.Name]
	if w.strategy.PassDeviceSpecs || v.plain {
		shared := snapshot.Vendor(v.traits.Name).Shared
		v.control = specsOf(shared)
		if v.traits.IMEXNodes != "" {
			v.control = append(v.control, state.Features.channelSpecs(v.traits.IMEXNodes, shared)...)
		}
	}
	if previous != nil {
		v.keepVanished(previous, now, w.linger)
	}
	if !v.place(chooser) {
		v.groups = newGroupChooser(v.devices, state.Policy)
	}
	v.answers = make([]atomic.Pointer[[]byte], len(v.devices))
	return v
}

// traitsOf returns the names of the vendor of the devices: a resource is of one vendor. While no GPU of them is in the snapshot, those of
// the previous view stay.
func (w *viewer) traitsOf(devices []device, snapshot *gpu.Snapshot, previous *view) gpu.Traits {
	for i := range devices {
		if at := devices[i].Position; at >= 0 && at < len(snapshot.GPUs) {
			for _, vendor := range w.vendors {
				if vendor.Name == snapshot.GPUs[at].Vendor {
					return vendor
				}
			}
			return gpu.Traits{Name: snapshot.GPUs[at].Vendor}
		}
	}
	if previous != nil {
		return previous.traits
	}
	return gpu.Traits{}
}

// visibleDevices returns the variables that tell a container its devices.
func (v *view) visibleDevices(value string) map[string]string {
	envs := make(map[string]string, len(v.traits.VisibleDevices))
	for _, name := range v.traits.VisibleDevices {
		envs[name] = value
	}
	return envs
}

func (v *view) add(d device) {
	v.byID[d.ID] = len(v.devices)
	v.devices = append(v.devices, d)
}

func (v *view) keepVanished(previous *view, now time.Time, linger time.Duration) {
	gone := slices.Clone(previous.devices)
	slices.SortFunc(gone, func(a, b device) int { return strings.Compare(a.ID, b.ID) })
	for _, d := range gone {
		if _, offered := v.byID[d.ID]; offered {
			continue
		}
		if d.vanished.IsZero() {
			d.vanished, d.Health, d.Reason, d.Position = now, gpu.Unhealthy, "it was removed from the node", -1
		}
		if now.Sub(d.vanished) < linger {
			v.add(d)
		}
	}
}

// nextExpiry is when the first vanished device leaves the view; zero when there is none.
func (v *view) nextExpiry(linger time.Duration) time.Time {
	var first time.Time
	for i := range v.devices {
		if at := v.devices[i].vanished; !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return first
	}
	return first.Add(linger)
}

// place sets the chooser and returns true if every offered device is a whole GPU with a position of its own.
func (v *view) place(chooser chooser) bool {
	var taken placement.Set
	for i := range v.devices {
		d := &v.devices[i]
		if !d.vanished.IsZero() {
			continue
		}
		if d.Position < 0 || d.Position >= placement.MaxGPUs || taken.Has(d.Position) || d.Key.MIG != "" || d.Mode != offer.Whole {
			return false
		}
		taken |= placement.SetOf(d.Position)
		v.at[d.Position] = i
	}
	v.chooser = chooser
	return true
}

func (w *viewer) prepare(o *offer.Device, snapshot *gpu.Snapshot) device {
	d := device{Device: *o, visible: string(o.Key.Device())}
	d.Position = -1
	if w.strategy.ID == v1alpha1.IDStrategyIndex {
		d.visible = o.Index
	}
	if w.strategy.usesCDI() {
		d.cdiName = w.cdiName(d.visible)
	}
	if o.NUMANode >= 0 {
		d.topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(o.NUMANode)}}}
	}
	i := slices.IndexFunc(snapshot.GPUs, func(g gpu.GPU) bool { return g.UUID == o.Key.GPU })
	if i < 0 {
		return d
	}
	d.Position = i
	if g := &snapshot.GPUs[i]; w.strategy.PassDeviceSpecs || w.plain[g.Vendor] {
		d.specs = specsOf(g.Nodes)
		for _, part := range g.MIG.Devices {
			if o.Key.MIG != "" && part.UUID == o.Key.MIG {
				d.specs = append(d.specs, specsOf(part.Nodes)...)
			}
		}
	}
	return d
}

// specsOf passes on the vendor's own nodes; the DRM nodes of a GPU are left to CDI, as in
// the field.
func specsOf(nodes []gpu.DeviceNode) []*pluginapi.DeviceSpec {
	var specs []*pluginapi.DeviceSpec
	for _, node := range nodes {
		if strings.HasPrefix(node.Path, gpu.DRMPrefix) {
			continue
		}
		host := node.HostPath
		if host == "" {
			host = node.Path
		}
		specs = append(specs, &pluginapi.DeviceSpec{ContainerPath: node.Path, HostPath: host, Permissions: "rw"})
	}
	return specs
}

// list returns what is advertised: every device with its health, and how many are healthy. A device that the ledger blocks for a holder
// that the scheduler does not count is unhealthy.
func (v *view) list(ledger Ledger) (*pluginapi.ListAndWatchResponse, int) {
	response := &pluginapi.ListAndWatchResponse{Devices: make([]*pluginapi.Device, len(v.devices))}
	healthy := 0
	for i := range v.devices {
		d := &v.devices[i]
		health := pluginapi.Unhealthy
		if block, blocked := ledger.BlockedBy(v.resource, d.Key); d.Health.Allocatable() && !(blocked && block.Unseen) {
			health = pluginapi.Healthy
			healthy++
		}
		response.Devices[i] = &pluginapi.Device{ID: d.ID, Health: health, Topology: d.topology}
	}
	return response, healthy
}
