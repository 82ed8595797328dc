package dra

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// adminRequest is among the names of requests in the answer for a device for admin access. The kubelet keeps them in its record, which has
// no other sign of it; a claim's own requests have names without a dot.
const adminRequest = "admin-access.berth.dev"

// wanted is what has to be done for a claim.
type wanted struct {
	// claim has the devices to hold.
	claim ledger.Claim
	// devices are all devices of the answer, also those for admin access, which the claim does not hold.
	devices []Device
	held    []bool
	// answer has no CDI names yet: a MIG device gets its UUID when it is created.
	answer []kubeletplugin.Device
}

// RefusedError is a claim whose allocation or configuration this driver cannot serve as it is.
type RefusedError struct{ Err error }

// Error returns the text of Err.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// nameOf names a claim in errors.
func nameOf(namespace, name string) string { return "claim " + namespace + "/" + name }

// read returns what the allocation of a claim requires of this driver. The error names the claim, the request and the field of the first
// part that this driver cannot serve.
func (d *Driver) read(claim *resourceapi.ResourceClaim) (w wanted, err error) {
	defer func() {
		if err != nil {
			err = &RefusedError{Err: err}
		}
	}()
	w = wanted{claim: ledger.Claim{UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name, Pods: podsOf(claim)}}
	who := nameOf(claim.Namespace, claim.Name)
	if claim.Status.Allocation == nil {
		return w, fmt.Errorf("%s: status.allocation is empty: the scheduler has not allocated the claim, or has deallocated it", who)
	}
	configured, err := d.settingsOf(claim.Status.Allocation.Devices.Config)
	if err != nil {
		return w, fmt.Errorf("%s, %w", who, err)
	}
	known := map[string]Device{}
	for _, device := range d.deps.Devices() {
		known[device.Name] = device
	}
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		if result.Driver != d.deps.DriverName {
			continue
		}
		device, err := d.deviceOf(result, known)
		if err != nil {
			return w, fmt.Errorf("%s, request %s, status.allocation.devices.results[%d]: %w", who, result.Request, i, err)
		}
		if !admin(result) {
			if err := w.hold(device, result.Request, inForce(configured, result.Request)); err != nil {
				return w, fmt.Errorf("%s, request %s, status.allocation.devices.results[%d]: %w", who, result.Request, i, err)
			}
		}
		requests := []string{result.Request}
		if admin(result) {
			requests = append(requests, adminRequest)
		}
		w.devices, w.held = append(w.devices, device), append(w.held, !admin(result))
		w.answer = append(w.answer, kubeletplugin.Device{
			Requests: requests, PoolName: result.Pool, DeviceName: result.Device,
		})
	}
	return w, nil
}

// hold adds a device that the claim has to hold, with its configuration, which may be nil.
func (w *wanted) hold(device Device, request string, with *settings) error {
	if slices.ContainsFunc(w.claim.Devices, func(other ledger.ClaimDevice) bool { return other.Key == device.Key }) {
		return fmt.Errorf("device %s is allocated to the claim twice; delete the claim, so that the scheduler allocates it again", device.Name)
	}
	if !device.Health.Allocatable() {
		return fmt.Errorf("device %s is %s: %s; delete the pod and its claim to get another GPU, or repair this one (berth gpus)",
			device.Name, strings.ToLower(string(device.Health)), reasonText(device.Reason))
	}
	slice, limits, err := sharing(device, with)
	if err != nil {
		return err
	}
	if limits.Wanted() && slices.ContainsFunc(w.claim.Devices, func(other ledger.ClaimDevice) bool { return other.MPS.Wanted() }) {
		return fmt.Errorf("mode mps of %s is for one GPU of a claim, because a container has one MPS daemon; make a claim for each GPU, or name one request in the requests of the configuration",
			with.field)
	}
	w.claim.Devices = append(w.claim.Devices, ledger.ClaimDevice{
		Key: device.Key, Profile: device.Profile, TimeSlice: slice, MPS: limits, Requests: []string{request},
	})
	return nil
}

func reasonText(reason string) string {
	if reason == "" {
		return "the reason is not known"
	}
	return reason
}

// deviceOf returns the device of a result that this driver can serve.
func (d *Driver) deviceOf(result *resourceapi.DeviceRequestAllocationResult, known map[string]Device) (Device, error) {
	switch {
	case result.Pool != d.deps.Pool:
		return Device{}, fmt.Errorf("device %s is in pool %s, and this node serves pool %s; delete the claim, so that the scheduler allocates it again",
			result.Device, result.Pool, d.deps.Pool)
	case result.ShareID != nil || len(result.ConsumedCapacity) > 0:
		return Device{}, fmt.Errorf("the allocation is a share of device %s (shareID, consumedCapacity), and this version of the driver serves whole devices only", result.Device)
	}
	device, found := known[result.Device]
	switch {
	case !found:
		return Device{}, fmt.Errorf("device %s is not on this node any more: its GPU was removed, does not answer, or is no longer allocated through DRA; delete the pod and its claim to get another GPU",
			result.Device)
	case device.Key.Share > 0:
		return Device{}, fmt.Errorf("device %s is a replica, and this version of the driver serves whole GPUs and MIG devices only", result.Device)
	case device.NotReady != "":
		return Device{}, fmt.Errorf("device %s cannot be used by containers yet: %s", result.Device, device.NotReady)
	}
	return device, nil
}

func admin(result *resourceapi.DeviceRequestAllocationResult) bool {
	return result.AdminAccess != nil && *result.AdminAccess
}

// podsOf returns the pods for which the claim is reserved; it is never nil, because they are known.
func podsOf(claim *resourceapi.ResourceClaim) []gpu.Pod {
	pods := []gpu.Pod{}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, gpu.Pod{UID: string(consumer.UID), Namespace: claim.Namespace, Name: consumer.Name})
		}
	}
	return pods
}
