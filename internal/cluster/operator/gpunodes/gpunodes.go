// Package gpunodes has what the operator's cache keeps of a GPUNode. The cache has one transform for each type, so that all concerns that
// watch GPUNodes share this one.
//
// It guarantees that the names of pods and claims that hold devices are not kept: a device has one holder without a name, or none. With
// the state of the gate, the driver and how devices are advertised stay their product, health and MIG profiles. Topology, causes of a
// health and memory do not.
//
// It must not import a concern, internal/node or internal/hardware.
package gpunodes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// Cached is what the cache keeps of GPUNodes.
func Cached() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&v1alpha1.GPUNode{}: {Transform: Keep}}
}

// Keep returns a GPUNode with what the concerns need; anything else it returns as it is.
func Keep(object any) (any, error) {
	node, ok := object.(*v1alpha1.GPUNode)
	if !ok {
		return object, nil
	}
	kept := &v1alpha1.GPUNode{TypeMeta: node.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
		DeletionTimestamp: node.DeletionTimestamp}}
	kept.Status.Driver.Version = node.Status.Driver.Version
	kept.Status.Summary = v1alpha1.GPUSummary{GPUs: node.Status.Summary.GPUs, Model: node.Status.Summary.Model}
	kept.Status.Gate = node.Status.Gate.DeepCopy()
	for i := range node.Status.Devices {
		kept.Status.Devices = append(kept.Status.Devices, device(&node.Status.Devices[i]))
	}
	return kept, nil
}

func device(d *v1alpha1.GPUDevice) v1alpha1.GPUDevice {
	kept := v1alpha1.GPUDevice{Product: d.Product, MIGEnabled: d.MIGEnabled, Excluded: d.Excluded, Health: v1alpha1.DeviceHealth{State: d.Health.State},
		Offered: offer(d.Offered), Holders: holders(d.Holders)}
	for i := range d.MIGDevices {
		m := &d.MIGDevices[i]
		mig := v1alpha1.MIGDevice{Offered: offer(m.Offered), Holders: holders(m.Holders)}
		if m.Health != nil {
			mig.Health = &v1alpha1.DeviceHealth{State: m.Health.State}
		}
		kept.MIGDevices = append(kept.MIGDevices, mig)
	}
	for i := range d.MIGProfiles {
		kept.MIGProfiles = append(kept.MIGProfiles, v1alpha1.MIGProfile{Name: d.MIGProfiles[i].Name})
	}
	return kept
}

func offer(o *v1alpha1.DeviceOffer) *v1alpha1.DeviceOffer {
	if o == nil {
		return nil
	}
	return &v1alpha1.DeviceOffer{Resource: o.Resource, Sharing: o.Sharing, Replicas: o.Replicas, API: o.API, RefusesMany: o.RefusesMany, Draining: o.Draining}
}

// holders says that there are some.
func holders(all []v1alpha1.Holder) []v1alpha1.Holder {
	if len(all) == 0 {
		return nil
	}
	return make([]v1alpha1.Holder, 1)
}
