package fleetview

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

// Hardware is what a GPUNode says: the devices of the node and who holds them. It does not change.
type Hardware struct {
	// Node is the name of the node, Product the model of its GPUs.
	Node    string
	Product string
	// Note says in one sentence why the GPUNode cannot be used, or which part of it; empty when all of it can.
	Note string
	// unusable is true when the counts of the Node decide.
	unusable bool
	entries  []entry
	links    *shared.Topology
	gpus     int
	nvlinks  bool
	// packed is true where a pod gets a replica of the GPU of which most is in use.
	packed bool
	held   map[string]podDevices
	// unpredictable says why the kubelet may choose other GPUs than predicted, or is empty.
	unpredictable string
}

// entry is an entry of fleet.Node.GPUs on which no pod is, and who holds its devices.
type entry struct {
	gpu fleet.GPU
	// uuid is the physical GPU's, devices are the UUIDs of its MIG devices.
	uuid    string
	devices []string
	holders []holder
}

// holder has one device of an entry.
type holder struct {
	// pods are the UIDs of the pods that hold it; none for a holder that is no pod.
	pods []string
	// lasting is true for maintenance, an orphan and a claim: its end is not that of a pod.
	lasting bool
}

// Free returns how many devices of each resource are free by what the GPUNode says.
func (h *Hardware) Free() map[string]int64 {
	free := map[string]int64{}
	for i := range h.entries {
		e := &h.entries[i]
		if e.gpu.State > fleet.Degraded || e.gpu.Unit == 0 {
			continue
		}
		all := int64(1)
		if e.gpu.Size > 0 {
			all = int64(e.gpu.Size / e.gpu.Unit)
		}
		free[e.gpu.Resource] += max(0, all-int64(len(e.holders)))
	}
	return free
}

// podDevices is what a pod holds.
type podDevices struct {
	uuids   []string
	devices int
}

// HeldBy returns the UUIDs of the GPUs that a pod holds, ascending, each once, and how many devices that are.
func (h *Hardware) HeldBy(pod string) ([]string, int) { return h.held[pod].uuids, h.held[pod].devices }

// Unpredictable returns why the kubelet may choose other GPUs than predicted, or an empty text.
func (h *Hardware) Unpredictable() string { return h.unpredictable }

// index lists what each pod holds.
func (h *Hardware) index() {
	h.held = map[string]podDevices{}
	for i := range h.entries {
		e := &h.entries[i]
		for _, holder := range e.holders {
			for _, pod := range holder.pods {
				has := h.held[pod]
				has.devices++
				if !slices.Contains(has.uuids, e.uuid) {
					has.uuids = append(has.uuids, e.uuid)
					slices.Sort(has.uuids)
				}
				h.held[pod] = has
			}
		}
	}
}

// Reader reads GPUNodes. Nodes of equal topologies share what is computed of them.
type Reader struct{ cache *shared.Cache }

// NewReader returns a reader with bounded memory.
func NewReader() *Reader { return &Reader{cache: shared.NewCache(shared.Options{})} }

// Unreadable stands for a GPUNode that cannot be decoded: the counts of its Node decide.
func Unreadable(node string, err error) *Hardware {
	return &Hardware{Node: node, unusable: true, Note: fmt.Sprintf("GPUNode %s cannot be read, the counts of the Node decide: %v", node, err)}
}

// Read reads a GPUNode. It never fails: what cannot be used is in Note.
func (r *Reader) Read(node *v1alpha1.GPUNode) *Hardware {
	h := &Hardware{Node: node.Name, Product: node.Status.Summary.Model, gpus: len(node.Status.Devices),
		packed: node.Status.Config.SharedDevicesAllocationPolicy == v1alpha1.PolicyPacked}
	if len(node.Status.Devices) > fleet.MaxGPUs {
		h.Note = fmt.Sprintf("GPUNode %s lists %d GPUs, more than the %d that are supported; the counts of the Node decide", node.Name, h.gpus, fleet.MaxGPUs)
		h.unusable = true
		return h
	}
	for i := range node.Status.Devices {
		h.add(uint8(i), &node.Status.Devices[i])
	}
	if len(h.entries) > fleet.MaxGPUs {
		h.Note = fmt.Sprintf("GPUNode %s has %d kinds of devices, more than the %d that are supported; the counts of the Node decide", node.Name, len(h.entries), fleet.MaxGPUs)
		h.unusable, h.entries = true, nil
		return h
	}
	h.index()
	if len(node.Status.Devices) > 0 {
		r.link(h, node)
	}
	switch policy := node.Status.Kubelet.TopologyManagerPolicy; {
	case policy != "" && policy != "none":
		h.unpredictable = "the kubelet's topology manager has the policy " + policy
	case h.nvlinks && len(node.Status.PCITopology) == 0:
		h.unpredictable = "the agent is too old to publish the PCIe paths between GPUs with NVLinks, by which it breaks ties"
	}
	return h
}

// link reads the links between the GPUs.
func (r *Reader) link(h *Hardware, node *v1alpha1.GPUNode) {
	if len(node.Status.Topology) == 0 {
		return
	}
	topology, err := gpu.ParseTopologies(h.gpus, node.Status.Topology, node.Status.PCITopology)
	if err != nil {
		h.Note = fmt.Sprintf("the topology of GPUNode %s cannot be used, links do not count: %v", node.Name, err)
		return
	}
	if h.gpus > placement.MaxGPUs {
		h.Note = fmt.Sprintf("GPUNode %s has %d GPUs, links count for at most %d", node.Name, h.gpus, placement.MaxGPUs)
		return
	}
	numa := make([]int, h.gpus)
	for i := range node.Status.Devices {
		numa[i] = node.Status.Devices[i].NUMANode
	}
	h.links, err = r.cache.Topology(topology, numa)
	if err != nil {
		h.links, h.Note = nil, fmt.Sprintf("the topology of GPUNode %s cannot be used, links do not count: %v", node.Name, err)
		return
	}
	h.nvlinks = topology.HasNVLinks()
	numbers := switches(topology)
	for i := range h.entries {
		g := &h.entries[i].gpu
		g.Switch = numbers[g.Physical]
	}
}

// switches numbers the PCIe switches: GPUs are below the same one when the path between them does not leave it.
func switches(t gpu.Topology) []uint8 {
	numbers := make([]uint8, len(t))
	for i := range t {
		numbers[i] = uint8(i)
		for k := range i {
			if path := t[i][k].Path; path != gpu.PathUnknown && path <= gpu.PathMultiSwitch {
				numbers[i] = numbers[k]
				break
			}
		}
	}
	return numbers
}

// add adds the entries of a physical GPU.
func (h *Hardware) add(position uint8, d *v1alpha1.GPUDevice) {
	if d.Excluded {
		return
	}
	if len(d.MIGDevices) == 0 {
		if d.Offered != nil {
			h.entries = append(h.entries, wholeOrReplicas(position, d))
		}
		return
	}
	all := memorySlices(d)
	for i := range d.MIGDevices {
		h.addMIG(position, d, &d.MIGDevices[i], all)
	}
}

// wholeOrReplicas returns the entry of a GPU that is not partitioned.
func wholeOrReplicas(position uint8, d *v1alpha1.GPUDevice) entry {
	e := entry{uuid: d.UUID, gpu: fleet.GPU{Physical: position, Resource: resourceOf(d.Offered), Unit: fleet.Whole, Single: d.Offered.RefusesMany}}
	if replicas := d.Offered.Replicas; replicas > 1 {
		e.gpu.Unit = max(1, fleet.Whole/int32(min(replicas, fleet.Whole)))
		e.gpu.Size = e.gpu.Unit * int32(min(replicas, fleet.Whole))
	}
	e.gpu.State = stateOf(d.Health.State, d.Offered)
	e.holders = holdersOf(d.Holders)
	return e
}

// addMIG adds a MIG device to the entry of its profile and state.
func (h *Hardware) addMIG(position uint8, d *v1alpha1.GPUDevice, m *v1alpha1.MIGDevice, all int) {
	if m.Offered == nil {
		return
	}
	health := d.Health.State
	if m.Health != nil {
		health = m.Health.State
	}
	made := fleet.GPU{Physical: position, Resource: resourceOf(m.Offered), Single: m.Offered.RefusesMany, State: stateOf(health, m.Offered)}
	size := int32(max(1, min(m.Size, all)) * fleet.Whole / max(1, all))
	replicas := int32(max(1, min(m.Offered.Replicas, fleet.Whole)))
	made.Unit = max(1, size/replicas)
	size = made.Unit * replicas
	at := slices.IndexFunc(h.entries, func(e entry) bool {
		return len(e.devices) > 0 && e.gpu.Physical == position && e.gpu.Resource == made.Resource && e.gpu.State == made.State && e.gpu.Unit == made.Unit
	})
	if at < 0 {
		h.entries = append(h.entries, entry{gpu: made, uuid: d.UUID})
		at = len(h.entries) - 1
	}
	e := &h.entries[at]
	e.gpu.Size = min(fleet.Whole, e.gpu.Size+size)
	e.devices = append(e.devices, m.UUID)
	e.holders = append(e.holders, holdersOf(m.Holders)...)
}

// memorySlices returns how many memory slices the GPU has, by its profiles or its devices.
func memorySlices(d *v1alpha1.GPUDevice) int {
	all := 1
	for _, profile := range d.MIGProfiles {
		for _, start := range profile.Starts {
			all = max(all, min(start+profile.Size, 64))
		}
	}
	for _, device := range d.MIGDevices {
		all = max(all, min(device.Start+device.Size, 64))
	}
	return all
}

// ResourceOfClaims stands for devices that are allocated through ResourceClaims: no container requests it.
const ResourceOfClaims = "resource.k8s.io/claim"

func resourceOf(offer *v1alpha1.DeviceOffer) string {
	if offer.API == string(v1alpha1.AllocationDRA) || offer.Resource == "" {
		return ResourceOfClaims
	}
	return offer.Resource
}

// stateOf maps a health; one that is not known is not usable.
func stateOf(health string, offer *v1alpha1.DeviceOffer) fleet.State {
	if offer.Draining != "" {
		return fleet.Draining
	}
	switch gpu.State(health) {
	case gpu.Healthy:
		return fleet.Usable
	case gpu.Degraded:
		return fleet.Degraded
	case gpu.Draining:
		return fleet.Draining
	}
	return fleet.Gone
}

// holdersOf returns the holders of a device, one per device or replica that is held.
func holdersOf(list []v1alpha1.Holder) []holder {
	var holders []holder
	for i := range list {
		switch h := &list[i]; gpu.HolderKind(h.Kind) {
		case gpu.HolderPod:
			holders = append(holders, holder{pods: []string{h.PodUID}})
		case gpu.HolderClaim:
			made := holder{lasting: true}
			for _, pod := range h.Pods {
				made.pods = append(made.pods, pod.UID)
			}
			if h.MorePods > 0 {
				made.pods = nil // Who the others are is not known.
			}
			holders = append(holders, made)
		default:
			holders = append(holders, holder{lasting: true})
		}
	}
	return holders
}
