package gate

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/problem"
)

// Spec is what is known of the CDI spec on disk.
type Spec struct {
	// Fingerprint identifies the driver's part of it.
	Fingerprint string
	Problems    []gpu.Cause
	// Missing are the names of devices that are advertised, or would be, and that the spec lacks.
	Missing []string
}

// Inputs are what other packages know.
type Inputs struct {
	BootID string
	// OnBus is the number of GPUs on the PCI bus, with or without a driver.
	OnBus int
	// Snapshot has the GPUs of the vendor that the gate is about, with the faults of its driver.
	Snapshot *gpu.Snapshot
	Vendor   string
	Excluded map[gpu.UUID]bool
	// WithoutCDI is true where containers get their devices in another way. Spec is nil until the spec was read.
	WithoutCDI bool
	Spec       *Spec
	// Runtime is why the container runtime does not inject; nil when it does.
	Runtime *gate.Stop
	// Unregistered are the resources that the kubelet has not registered, with the reason where there is one; Advertised is the number of
	// those that it has.
	Unregistered []string
	Advertised   int
}

// observeFacts returns the facts, without those about use and validation pods. Known is false until the CDI spec was read: there is no key
// then.
func observeFacts(in Inputs) (facts gate.Facts, known bool) {
	driver := in.Snapshot.Vendor(in.Vendor).Driver
	facts = gate.Facts{GPUs: in.hasGPUs(), Driver: driverStop(in, driver), Runtime: in.Runtime, Spec: specStop(in), Advertised: advertisedStop(in)}
	known = in.WithoutCDI || in.Spec != nil
	switch {
	case !known || facts.Driver != nil && !driver.Present():
	case in.WithoutCDI:
		facts.Key = gate.Key(in.BootID, driver.Version, "")
	case in.Spec.Fingerprint != "":
		facts.Key = gate.Key(in.BootID, driver.Version, in.Spec.Fingerprint)
	}
	return facts, known
}

// hasGPUs reports whether the node has a GPU that the configuration does not exclude.
func (in *Inputs) hasGPUs() bool {
	if len(in.Snapshot.GPUs) == 0 {
		return in.OnBus > 0
	}
	return slices.ContainsFunc(in.Snapshot.GPUs, func(g gpu.GPU) bool { return !in.Excluded[g.UUID] })
}

// driverStop returns why the driver does not answer for each GPU.
func driverStop(in Inputs, driver gpu.Driver) *gate.Stop {
	if !driver.Present() {
		for _, fault := range in.Snapshot.Faults {
			if isError(fault.Code) {
				return &gate.Stop{Code: fault.Code, Message: fault.Message}
			}
		}
		return &gate.Stop{Code: "DRIVER_MISSING", Message: fmt.Sprintf("no driver answers for the %d GPUs on the PCI bus", in.OnBus)}
	}
	if got := len(in.Snapshot.GPUs); got < in.OnBus {
		return &gate.Stop{Code: "GATE_GPU_MISSING", Message: fmt.Sprintf("the PCI bus has %d GPUs, and the driver answers for %d", in.OnBus, got)}
	}
	for i := range in.Snapshot.GPUs {
		one := &in.Snapshot.GPUs[i]
		if in.Excluded[one.UUID] || !one.Health.State.Worse(gpu.Draining) {
			continue
		}
		stop := gate.Stop{Code: "GPU_LOST", Message: fmt.Sprintf("GPU %d (%s) is %s", one.Index, one.UUID, one.Health.State)}
		if len(one.Health.Causes) > 0 {
			cause := one.Health.Causes[0]
			stop.Code, stop.Message = cause.Code, stop.Message+": "+cause.Message
		}
		return &stop
	}
	return nil
}

// ofUse are problems of the spec that follow from how devices are used, not from the node.
var ofUse = []string{"CDI_MPS_MISSING"}

// specStop returns why the CDI spec cannot inject each device.
func specStop(in Inputs) *gate.Stop {
	switch {
	case in.WithoutCDI:
		return nil
	case in.Spec == nil:
		return &gate.Stop{Message: "waits until the CDI spec was read"}
	}
	for _, p := range in.Spec.Problems {
		if isError(p.Code) && !slices.Contains(ofUse, p.Code) {
			return &gate.Stop{Code: p.Code, Message: p.Message}
		}
	}
	switch {
	case in.Spec.Fingerprint == "":
		return &gate.Stop{Message: "waits until there is a CDI spec"}
	case len(in.Spec.Missing) > 0:
		return &gate.Stop{Message: fmt.Sprintf("waits until the CDI spec has %s (%d devices are missing)", in.Spec.Missing[0], len(in.Spec.Missing))}
	}
	return nil
}

// advertisedStop returns why the devices are not advertised.
func advertisedStop(in Inputs) *gate.Stop {
	switch {
	case len(in.Unregistered) > 0:
		return &gate.Stop{Message: "waits until the kubelet has registered " + in.Unregistered[0]}
	case in.Advertised == 0:
		return &gate.Stop{Message: "waits until a device is advertised"}
	}
	return nil
}

// isError reports whether a code of the catalogue prevents the use of a GPU.
func isError(code string) bool {
	found, ok := problem.Find(code)
	return ok && found.Severity == problem.Error
}
