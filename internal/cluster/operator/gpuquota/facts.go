package gpuquota

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/quota"
)

// sharedSuffix is what the name of replicas has behind that of the unshared device, unless a rule names it.
const sharedSuffix = ".shared"

// wellKnown returns what the API server counts under the names that devices have where no rule names them, by the DeviceClasses of Berth:
// pods and claims can request them before a node has such a device.
func wellKnown(classes map[string]string) []quota.Counted {
	var all []quota.Counted
	for resource, class := range classes {
		kind := quota.Whole
		if _, ok := profileOf(class); ok {
			kind = quota.MIG
		}
		all = append(all, quota.Resource(resource).Of(kind), quota.Resource(resource+sharedSuffix).Of(quota.TimeSlicing, quota.MPS), quota.Class(class).Of(kind))
	}
	return all
}

// counted returns what the API server counts of the devices of all nodes: the extended resources that agents advertise, and the
// DeviceClasses. A claim of a class can be of any GPU that has the profile, also of one that a device plugin advertises now.
func counted(nodes []v1alpha1.GPUNode, classes map[string]string) []quota.Counted {
	var all []quota.Counted
	whole, profiles := map[string]bool{}, map[string]map[string]bool{}
	for i := range nodes {
		for j := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[j]
			if d.Excluded {
				continue
			}
			whole[d.Product] = true
			for _, p := range d.MIGProfiles {
				name := inClass(p.Name)
				if profiles[name] == nil {
					profiles[name] = map[string]bool{}
				}
				profiles[name][d.Product] = true
			}
			if o := d.Offered; o != nil {
				all = append(all, quota.Resource(o.Resource, quota.Device{Model: d.Product, Kind: kindOf(o, quota.Whole)}))
			}
			for k := range d.MIGDevices {
				if o := d.MIGDevices[k].Offered; o != nil {
					all = append(all, quota.Resource(o.Resource, quota.Device{Model: d.Product, Kind: kindOf(o, quota.MIG)}))
				}
			}
		}
	}
	for _, class := range classes {
		kind, models := quota.Whole, whole
		if profile, ok := profileOf(class); ok {
			kind, models = quota.MIG, profiles[profile]
		}
		var devices []quota.Device
		for model := range models {
			devices = append(devices, quota.Device{Model: model, Kind: kind})
		}
		if len(devices) > 0 {
			all = append(all, quota.Class(class, devices...))
		}
	}
	return all
}

// kindOf returns the kind of a device that is advertised.
func kindOf(o *v1alpha1.DeviceOffer, unshared quota.Kind) quota.Kind {
	if o.Sharing == "" {
		return unshared
	}
	return quota.Kind(o.Sharing)
}

// profileOf returns the MIG profile of a DeviceClass, as inClass writes it: 1g.5gb.me of mig-1g.5gb.me.gpu.berth.dev.
func profileOf(class string) (string, bool) {
	rest, ok := strings.CutPrefix(class, "mig-")
	profile, _, named := strings.Cut(rest, ".gpu.")
	return profile, ok && named
}

// inClass writes a MIG profile as the names of DeviceClasses have it: a name of Kubernetes has no "+".
func inClass(profile string) string { return strings.ReplaceAll(profile, "+", ".") }

// sameNames reports whether two states of a GPUNode advertise the same.
func sameNames(a, b *v1alpha1.GPUNode) bool {
	return slices.EqualFunc(a.Status.Devices, b.Status.Devices, func(x, y v1alpha1.GPUDevice) bool {
		return x.Product == y.Product && x.Excluded == y.Excluded && sameName(x.Offered, y.Offered) &&
			slices.EqualFunc(x.MIGDevices, y.MIGDevices, func(x, y v1alpha1.MIGDevice) bool { return sameName(x.Offered, y.Offered) }) &&
			slices.EqualFunc(x.MIGProfiles, y.MIGProfiles, func(x, y v1alpha1.MIGProfile) bool { return x.Name == y.Name })
	})
}

func sameName(a, b *v1alpha1.DeviceOffer) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Resource == b.Resource && a.Sharing == b.Sharing
}
