// Package healthsync reports the health of the devices to the users of the API: as events, and as the condition and the
// taint of the Node.
//
// What it guarantees: each change of a device's health state leads to one event, which names the pods that hold the
// device; a device that is healthy at the start of the agent leads to none. The condition and the taint follow from the
// present states alone ([Summarize]). The taint is wanted only while a device is worse than draining: a GPU that still
// works must not keep pods from the other GPUs of the Node. A vendor without a driver, such as one that was withdrawn,
// neither taints the Node nor changes the condition's status while another vendor's driver answers.
//
// What wakes it: a change of the inventory.
//
// What it writes: nothing by itself; it passes events, condition and taint to their workers.
//
// What it never waits for: anything; the functions in [Deps] must not block.
//
// The package must not import the agent, another package below it, an adapter, or a front end.
package healthsync

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// Deps are the dependencies of a Reporter.
type Deps struct {
	Hardware inventory.Hardware
	// Holders returns the names of those that hold a device, a part of it, or the GPU that it is a part of.
	Holders func(gpu.DeviceKey) []string
	Event   func(nodeapi.Event)
	// Condition and Taint receive the wanted condition and taint of the Node.
	Condition func(nodeapi.NodeCondition)
	Taint     func(bool)
	// TaintUnhealthy reports whether the configuration wants a taint.
	TaintUnhealthy bool
}

// Reporter is the actor. Create it with New, start it with Run.
type Reporter struct {
	deps Deps
	// reported are the states for which events were made.
	reported map[gpu.UUID]gpu.State
}

// New returns a Reporter.
func New(deps Deps) *Reporter { return &Reporter{deps: deps, reported: map[gpu.UUID]gpu.State{}} }

// Run reports until ctx ends. It must not run before the holders are known.
func (r *Reporter) Run(ctx context.Context) error {
	hardware := r.deps.Hardware.Subscribe()
	defer hardware.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
		}
		devices := Devices(r.deps.Hardware.Current())
		r.events(devices)
		condition, taint := Summarize(devices)
		r.deps.Condition(condition)
		r.deps.Taint(taint && r.deps.TaintUnhealthy)
	}
}

// events publishes an event for each device whose state has changed.
func (r *Reporter) events(devices []Device) {
	states := map[gpu.UUID]gpu.State{}
	for _, device := range devices {
		states[device.ID] = device.State
		switch before := cmp.Or(r.reported[device.ID], gpu.Healthy); {
		case device.State == before:
		case device.State == gpu.Healthy:
			r.deps.Event(nodeapi.GPUHealthy(device.Name))
		default:
			r.deps.Event(nodeapi.GPUNotHealthy(device.Name, device.State, device.Causes, r.deps.Holders(device.Key)))
		}
	}
	r.reported = states
}

// Device is a GPU or a MIG device with its health.
type Device struct {
	ID    gpu.UUID
	Key   gpu.DeviceKey
	Name  string
	State gpu.State
	// Causes returns why the device is not healthy; empty when that is not known.
	Causes string
	// Apart is true for a device of a vendor without a driver on a Node where another vendor's driver answers.
	Apart bool
}

// Devices lists the devices of a node, ordered by name.
func Devices(snapshot *gpu.Snapshot) []Device {
	var devices []Device
	apart := false
	add := func(id gpu.UUID, key gpu.DeviceKey, name string, health gpu.Health) {
		var causes []string
		for _, cause := range health.Causes {
			causes = append(causes, cause.Code+": "+cause.Message)
		}
		devices = append(devices, Device{ID: id, Key: key, Name: name, State: cmp.Or(health.State, gpu.Healthy),
			Causes: strings.Join(causes, "; "), Apart: apart})
	}
	for i := range snapshot.GPUs {
		one := &snapshot.GPUs[i]
		apart = snapshot.DriverPresent() && !snapshot.Vendor(one.Vendor).Driver.Present()
		add(one.UUID, gpu.DeviceKey{GPU: one.UUID}, fmt.Sprintf("GPU %d (%s)", one.Index, one.UUID), one.Health)
		for j := range one.MIG.Devices {
			part := &one.MIG.Devices[j]
			name := fmt.Sprintf("MIG device %d:%d (%s, %s)", one.Index, part.Index, part.Profile, part.UUID)
			add(part.UUID, gpu.DeviceKey{GPU: one.UUID, MIG: part.UUID}, name, part.Health)
		}
	}
	slices.SortFunc(devices, func(x, y Device) int { return strings.Compare(x.Name, y.Name) })
	return devices
}

// The reasons of the condition. Draining: devices that are not allocated any more still serve the pods that have them,
// and nothing is worse.
const (
	reasonHealthy   = "Healthy"
	reasonDraining  = string(gpu.Draining)
	reasonUnhealthy = "Unhealthy"
)

// Summarize returns the condition of the Node, and whether a device is unhealthy enough for the taint.
func Summarize(devices []Device) (condition nodeapi.NodeCondition, taint bool) {
	var bad []string
	condition = nodeapi.NodeCondition{OK: true, Reason: reasonHealthy}
	for _, device := range devices {
		if device.State == gpu.Healthy {
			continue
		}
		bad = append(bad, device.Name+" is "+string(device.State))
		if device.Apart {
			continue
		}
		worse := device.State.Worse(gpu.Draining)
		taint = taint || worse
		condition.OK = condition.OK && !device.State.Worse(gpu.Degraded)
		switch {
		case worse:
			condition.Reason = reasonUnhealthy
		case device.State == gpu.Draining && condition.Reason == reasonHealthy:
			condition.Reason = reasonDraining
		}
	}
	condition.Message = "every GPU is healthy"
	if len(bad) > 0 {
		condition.Message = strings.Join(bad, "; ")
	}
	return condition, taint
}
