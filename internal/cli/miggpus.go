package cli

import (
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

// gpusOf returns a node's GPUs for the planner, from its GPUNode. A GPUNode has no GPU instances without a compute
// instance; they exist only while a layout is applied.
func gpusOf(node *v1alpha1.GPUNode) []mig.GPU {
	holders := holdersOfNode(node)
	var gpus []mig.GPU
	for i := range node.Status.Devices {
		device := &node.Status.Devices[i]
		if device.Vendor != "" && device.Vendor != nvidia.Traits().Name {
			continue // the index of a layout counts the GPUs of the vendor that has MIG
		}
		g := gpu.GPU{
			UUID: gpu.UUID(device.UUID), Index: device.Index, Product: device.Product, DeviceID: deviceID(device.DeviceID),
			SubsystemID: deviceID(device.SubsystemID),
			MIG: gpu.MIG{
				Capable: len(device.MIGProfiles) > 0 || device.MIGEnabled, Enabled: device.MIGEnabled,
				ModeNeedsReset: device.MIGModeNeedsReset, Geometry: fleetview.Geometry(device.MIGProfiles),
			},
		}
		for _, one := range device.MIGDevices {
			g.MIG.Devices = append(g.MIG.Devices, gpu.MIGDevice{
				Partition: gpu.Partition{UUID: gpu.UUID(one.UUID), Profile: one.Profile, Index: one.Index},
				GI:        one.GI, CI: one.CI, Start: one.Start, Size: one.Size,
			})
		}
		gpus = append(gpus, mig.GPUOf(&g, holders))
	}
	return gpus
}

// planNode plans a node's GPUs, except those that its configuration excludes: the agent does not change them, whatever
// the layout says.
func planNode(gpus []mig.GPU, layout mig.Layout, node *v1alpha1.GPUNode) []mig.GPUPlan {
	plans := mig.PlanNode(gpus, layout)
	if node == nil {
		return plans
	}
	return slices.DeleteFunc(plans, func(plan mig.GPUPlan) bool {
		return slices.ContainsFunc(node.Status.Devices, func(d v1alpha1.GPUDevice) bool {
			return d.Excluded && d.UUID == string(plan.UUID)
		})
	})
}

// deviceID parses 0xDDDDVVVV; it returns 0 if the agent does not report it.
func deviceID(text string) uint32 {
	id, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return 0
	}
	return uint32(id)
}

// holdersOfNode returns a function that lists the holders of a GPU, a MIG device or a replica as text. It leaves out
// Berth's own maintenance, which blocks nothing.
func holdersOfNode(node *v1alpha1.GPUNode) func(gpu.DeviceKey) []string {
	words := map[gpu.UUID][]string{}
	add := func(id string, holders []v1alpha1.Holder) {
		for _, holder := range holders {
			if text := holderText(holder); gpu.HolderKind(holder.Kind) != gpu.HolderMaintenance &&
				!slices.Contains(words[gpu.UUID(id)], text) {
				words[gpu.UUID(id)] = append(words[gpu.UUID(id)], text)
			}
		}
	}
	for i := range node.Status.Devices {
		device := &node.Status.Devices[i]
		add(device.UUID, device.Holders)
		for _, one := range device.MIGDevices {
			add(one.UUID, one.Holders)
		}
	}
	return func(key gpu.DeviceKey) []string { return words[key.Device()] }
}

// blocking returns the holders that block plans, without duplicates, in the order of the GPUs.
func blocking(node *v1alpha1.GPUNode, plans []mig.GPUPlan) []v1alpha1.Holder {
	var found []v1alpha1.Holder
	for i := range plans {
		for _, blocker := range plans[i].Blockers {
			concerned := append([]gpu.UUID{blocker.Instance.UUID}, blocker.Instance.Siblings...)
			if blocker.Instance.UUID == "" {
				concerned = []gpu.UUID{plans[i].UUID}
			}
			for _, holder := range holdersOn(node, concerned) {
				same := func(h v1alpha1.Holder) bool {
					return h.Kind == holder.Kind && h.ID == holder.ID && h.PodUID == holder.PodUID && h.Pod == holder.Pod
				}
				if gpu.HolderKind(holder.Kind) != gpu.HolderMaintenance && !slices.ContainsFunc(found, same) {
					found = append(found, holder)
				}
			}
		}
	}
	return found
}

func holdersOn(node *v1alpha1.GPUNode, ids []gpu.UUID) []v1alpha1.Holder {
	var found []v1alpha1.Holder
	for i := range node.Status.Devices {
		device := &node.Status.Devices[i]
		if slices.Contains(ids, gpu.UUID(device.UUID)) {
			found = append(found, device.Holders...)
		}
		for _, one := range device.MIGDevices {
			if slices.Contains(ids, gpu.UUID(one.UUID)) {
				found = append(found, one.Holders...)
			}
		}
	}
	return found
}
