// Package injection computes what a container gets with each device, and what the configuration adds to the CDI spec.
// All results are computed from memory at each call.
//
// It guarantees that a device that is not in the CDI spec on disk is not reported as injectable, and that an MPS
// replica is ready only while its daemon is.
//
// It has no goroutine: nothing wakes it, it writes nothing, and it waits for nothing. It must not import a front end,
// the inventory or the ledger.
package injection

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Deps are the dependencies of a Source. The functions must only read memory.
type Deps struct {
	// UsesCDI is true when the container runtime injects devices by their CDI names.
	UsesCDI bool
	// Plain are the vendors whose devices are injected as device nodes alone: no CDI spec has them.
	Plain map[string]bool
	// MPSRoot is the directory of the MPS daemons.
	MPSRoot string
	// Config returns the configuration in force.
	Config func() *v1alpha1.AgentConfig
	// Names returns the unqualified names of the devices in the CDI spec on disk. Known is false until it and the other
	// files of the host were read.
	Names func() (names map[string]bool, known bool)
	// MPSUnits returns the units that need an MPS daemon.
	MPSUnits func() []offer.Unit
	// WithoutDaemon returns why MPS replicas of a GPU cannot be used now; empty when its daemon is ready.
	WithoutDaemon func(gpu.UUID) string
	// Ending returns why a GPU that needs no MPS daemon cannot be used: one still runs on it; empty when it can.
	Ending func(gpu.UUID) string
}

// Source returns what can be injected. Create it with New.
type Source struct{ deps Deps }

// New returns a Source.
func New(deps Deps) *Source { return &Source{deps} }

// Known reports whether it is known which devices of all vendors can be injected. Without a CDI strategy and IMEX channels
// nothing depends on the host's files.
func (s *Source) Known() bool {
	if !s.deps.UsesCDI && len(s.deps.Config().IMEX.ChannelIDs) == 0 {
		return true
	}
	_, known := s.deps.Names()
	return known
}

// Injectable reports whether the container runtime can inject a device of a vendor: it needs the device in the CDI spec, where
// it injects by CDI. No device is injectable before that is known; a plain vendor's device always is, whatever the files
// of the others do.
func (s *Source) Injectable(vendor string, key gpu.DeviceKey) bool {
	return s.deps.Plain[vendor] || s.Known() && s.has(string(key.Device()))
}

func (s *Source) has(name string) bool {
	if !s.deps.UsesCDI {
		return true
	}
	names, _ := s.deps.Names()
	return names[name]
}

// Injection returns what a container gets with a device in a use in addition to the device itself, and why that is not
// possible now; empty when it is. What a claim wants is not in the use of its device.
func (s *Source) Injection(key gpu.DeviceKey, use offer.Use) (offer.Injection, string) {
	switch {
	case use.Mode == offer.MPS:
		return s.MPS(key.GPU)
	case use.API == offer.DRA:
		return offer.Injection{}, ""
	}
	return offer.Injection{}, s.deps.Ending(key.GPU)
}

// MPS returns what a container needs to be a client of a GPU's MPS daemon, and why it cannot be one now; empty when it can.
func (s *Source) MPS(id gpu.UUID) (offer.Injection, string) {
	pipe, name := cdi.MPSPipePath(id), cdi.MPSName(id)
	injection := offer.Injection{
		CDIDevices: []string{cdi.QualifiedName(name)},
		Envs:       map[string]string{cdi.MPSPipeVariable: pipe},
		Mounts: []offer.Mount{
			{HostPath: mps.PipeDir(s.deps.MPSRoot, id), ContainerPath: pipe},
			{HostPath: mps.ShmDir(s.deps.MPSRoot, id), ContainerPath: cdi.MPSShmPath},
		},
	}
	why := s.deps.WithoutDaemon(id)
	if why == "" && !s.has(name) {
		why = "the directories of its MPS daemon are not in the CDI spec yet"
	}
	return injection, why
}

// Extras returns what the configuration adds to the CDI spec. The directories of an MPS daemon are in the spec only
// while it is ready: before, they may not exist.
func (s *Source) Extras() cdi.Extras {
	config := s.deps.Config()
	extras := cdi.Extras{
		GDS: config.GDS, GDRCopy: config.GDRCopy, MOFED: config.MOFED,
		IMEXChannels: config.IMEX.ChannelIDs, IMEXRequired: config.IMEX.Required,
	}
	for _, unit := range s.deps.MPSUnits() {
		id := unit.Key.GPU
		if s.deps.WithoutDaemon(id) == "" {
			extras.MPS = append(extras.MPS, cdi.MPSDevice{GPU: id, PipeDir: mps.PipeDir(s.deps.MPSRoot, id),
				ShmDir: mps.ShmDir(s.deps.MPSRoot, id)})
		}
	}
	return extras
}
