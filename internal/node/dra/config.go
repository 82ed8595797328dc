package dra

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/config"
)

// settings are the opaque configuration of this driver for some requests.
type settings struct {
	*v1alpha1.GPUClaimConfig
	// field is where it is in the claim; requests are those that it is for, empty for all.
	field    string
	requests []string
	ofClass  bool
}

// settingsOf returns the configurations of this driver in their order. The error names the requests, the field and the object to correct.
func (d *Driver) settingsOf(entries []resourceapi.DeviceAllocationConfiguration) ([]settings, error) {
	var all []settings
	for i := range entries {
		opaque := entries[i].Opaque
		if opaque == nil || opaque.Driver != d.deps.DriverName {
			continue
		}
		one := settings{
			field:    fmt.Sprintf("status.allocation.devices.config[%d].opaque.parameters", i),
			requests: entries[i].Requests, ofClass: entries[i].Source == resourceapi.AllocationConfigSourceClass,
		}
		var err error
		if one.GPUClaimConfig, err = config.ParseClaim(one.field, opaque.Parameters.Raw); err != nil {
			requests, where := "all requests", "claim (or its template)"
			if len(one.requests) > 0 {
				requests = "request " + strings.Join(one.requests, ", ")
			}
			if one.ofClass {
				where = "DeviceClass"
			}
			return nil, fmt.Errorf("%s, %w; correct it in the %s and make the claim again", requests, err, where)
		}
		all = append(all, one)
	}
	return all, nil
}

// inForce returns the configuration of a request: the last one of the claim, else the last one of the class, else nil.
func inForce(all []settings, request string) *settings {
	var found *settings
	for i := range all {
		one := &all[i]
		if one.covers(request) && (found == nil || found.ofClass || !one.ofClass) {
			found = one
		}
	}
	return found
}

// covers reports whether the configuration is for a request. The name of a request with alternatives stands for each of them, which the
// allocation names REQUEST/ALTERNATIVE.
func (s *settings) covers(request string) bool {
	parent, _, _ := strings.Cut(request, "/")
	return len(s.requests) == 0 || slices.Contains(s.requests, request) || slices.Contains(s.requests, parent)
}

// sharing returns the time slice that a device has to get, which is empty for a MIG device, and the limits of its MPS daemon.
func sharing(device Device, with *settings) (slice string, limits gpu.MPSLimits, err error) {
	slice = gpu.TimeSliceDefault
	if with != nil {
		slice = cmp.Or(string(with.Sharing.TimeSlice), slice)
		if mps := with.Sharing.MPS; mps != nil {
			limits = gpu.MPSLimits(*mps)
		}
	}
	const fix = "name the requests for whole GPUs in the requests of the configuration, or remove"
	switch {
	case device.Key.Whole():
		return slice, limits, nil
	case limits.Wanted():
		return "", limits, fmt.Errorf("device %s is a MIG device, and MPS of %s runs on whole GPUs only; %s mode mps", device.Name, with.field, fix)
	case slice != gpu.TimeSliceDefault:
		return "", limits, fmt.Errorf("device %s is a MIG device, and only whole GPUs have the time slice %s of %s; %s timeSlice", device.Name, slice, with.field, fix)
	}
	return "", limits, nil
}

// serve waits until each whole GPU of the claim, which the ledger has, has the MPS daemon of its configuration, or none, and adds what a
// client needs to the answer.
func (d *Driver) serve(ctx context.Context, w *wanted) error {
	for _, device := range w.claim.Devices {
		if !device.Key.Whole() {
			continue
		}
		names, err := d.deps.Served(ctx, device.Key.GPU, device.MPS)
		if err != nil {
			return fmt.Errorf("request %s: %w", strings.Join(device.Requests, ", "), err)
		}
		if !device.MPS.Wanted() {
			continue
		}
		for i := range w.devices {
			if w.held[i] && w.devices[i].Key == device.Key {
				w.answer[i].CDIDeviceIDs = append(w.answer[i].CDIDeviceIDs, names...)
			}
		}
		if err := d.deps.Fault(StepServed); err != nil {
			return err
		}
	}
	return nil
}

// slice waits until the GPUs of the claim, which the ledger has, have the time slices of its configuration.
func (d *Driver) slice(ctx context.Context, w *wanted) error {
	for _, device := range w.claim.Devices {
		if device.TimeSlice == "" || device.TimeSlice == gpu.TimeSliceDefault {
			continue
		}
		if err := d.deps.Sliced(ctx, device.Key.GPU, device.TimeSlice); err != nil {
			return fmt.Errorf("request %s: %w", strings.Join(device.Requests, ", "), err)
		}
		if err := d.deps.Fault(StepSliced); err != nil {
			return err
		}
	}
	return nil
}
