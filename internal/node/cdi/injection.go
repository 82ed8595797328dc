package cdi

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// InjectionDeps are the dependencies of a InjectionSource. The functions must only read memory.
type InjectionDeps struct {
	// UsesCDI is true when the container runtime injects devices by their CDI names.
	UsesCDI bool
	// Plain are the vendors whose devices are injected as device nodes alone: no CDI spec has them.
	Plain map[string]bool
	// MPSDirs returns the directories of a GPU's MPS daemon: of its pipes, and its /dev/shm.
	MPSDirs func(gpu.UUID) (pipe, shm string)
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

// InjectionSource computes what a container gets with each device, and what the configuration adds to the CDI spec, from memory at each
// call. A device that is not in the CDI spec on disk is not injectable, and an MPS replica is ready only while its daemon is. Create it
// with NewInjectionSource.
type InjectionSource struct{ deps InjectionDeps }

// NewInjectionSource returns a InjectionSource.
func NewInjectionSource(deps InjectionDeps) *InjectionSource { return &InjectionSource{deps} }

// Known reports whether it is known which devices of all vendors can be injected. Without a CDI strategy and IMEX channels
// nothing depends on the host's files.
func (s *InjectionSource) Known() bool {
	if !s.deps.UsesCDI && len(s.deps.Config().IMEX.ChannelIDs) == 0 {
		return true
	}
	_, known := s.deps.Names()
	return known
}

// Injectable reports whether the container runtime can inject a device of a vendor: it needs the device in the CDI spec, where
// it injects by CDI. No device is injectable before that is known; a plain vendor's device always is, whatever the files
// of the others do.
func (s *InjectionSource) Injectable(vendor string, key gpu.DeviceKey) bool {
	return s.deps.Plain[vendor] || s.Known() && s.has(string(key.Device()))
}

func (s *InjectionSource) has(name string) bool {
	if !s.deps.UsesCDI {
		return true
	}
	names, _ := s.deps.Names()
	return names[name]
}

// Injection returns what a container gets with a device in a use in addition to the device itself, and why that is not
// possible now; empty when it is. What a claim wants is not in the use of its device.
func (s *InjectionSource) Injection(key gpu.DeviceKey, use offer.Use) (offer.Injection, string) {
	switch {
	case use.Mode == offer.MPS:
		return s.MPS(key.GPU)
	case use.API == offer.DRA:
		return offer.Injection{}, ""
	}
	return offer.Injection{}, s.deps.Ending(key.GPU)
}

// MPS returns what a container needs to be a client of a GPU's MPS daemon, and why it cannot be one now; empty when it can.
func (s *InjectionSource) MPS(id gpu.UUID) (offer.Injection, string) {
	pipe, name := mpsPipePath(id), mpsName(id)
	pipeDir, shmDir := s.deps.MPSDirs(id)
	injection := offer.Injection{
		CDIDevices: []string{QualifiedName(name)},
		Envs:       map[string]string{MPSPipeVariable: pipe},
		Mounts: []offer.Mount{
			{HostPath: pipeDir, ContainerPath: pipe},
			{HostPath: shmDir, ContainerPath: MPSShmPath},
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
func (s *InjectionSource) Extras() Extras {
	config := s.deps.Config()
	extras := Extras{
		GDS: config.GDS, GDRCopy: config.GDRCopy, MOFED: config.MOFED,
		IMEXChannels: config.IMEX.ChannelIDs, IMEXRequired: config.IMEX.Required,
	}
	for _, unit := range s.deps.MPSUnits() {
		id := unit.Key.GPU
		if s.deps.WithoutDaemon(id) == "" {
			pipeDir, shmDir := s.deps.MPSDirs(id)
			extras.MPS = append(extras.MPS, MPSDevice{GPU: id, PipeDir: pipeDir, ShmDir: shmDir})
		}
	}
	return extras
}
