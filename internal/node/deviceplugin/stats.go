package deviceplugin

import "sync/atomic"

// Stats are the counts of one resource since its server was started, for metrics and
// for /debug/state.
type Stats struct {
	Resource string `json:"resource"`
	// Registered is true when the kubelet has accepted this agent's latest endpoint and keeps a stream open.
	Registered bool `json:"registered"`
	// Active is true when this agent's list counts: it is registered, and no newer agent is active.
	Active  bool `json:"active"`
	Devices int  `json:"devices"`
	// Healthy counts the devices that are advertised as healthy.
	Healthy              int    `json:"healthy"`
	Streams              int    `json:"streams"`
	Registrations        uint64 `json:"registrations"`
	RegistrationFailures uint64 `json:"registrationFailures"`
	// ListsSent counts messages over all streams.
	ListsSent   uint64 `json:"listsSent"`
	Preferences uint64 `json:"preferences"`
	Allocations uint64 `json:"allocations"`
	// Refusals counts Allocate and GetPreferredAllocation calls that ended in an error.
	Refusals uint64 `json:"refusals"`
	// LastError is the error of the last attempt to register; empty if it succeeded.
	LastError string `json:"lastError,omitempty"`
}

type counters struct {
	registered    atomic.Bool
	active        atomic.Bool
	devices       atomic.Int64
	healthy       atomic.Int64
	streams       atomic.Int64
	registrations atomic.Uint64
	failures      atomic.Uint64
	lists         atomic.Uint64
	prefers       atomic.Uint64
	allocations   atomic.Uint64
	refusals      atomic.Uint64
	lastError     atomic.Pointer[string]
}

func (c *counters) read(resource string) Stats {
	s := Stats{
		Resource:   resource,
		Registered: c.registered.Load(), Active: c.active.Load(),
		Devices: int(c.devices.Load()), Healthy: int(c.healthy.Load()), Streams: int(c.streams.Load()),
		Registrations: c.registrations.Load(), RegistrationFailures: c.failures.Load(),
		ListsSent: c.lists.Load(), Preferences: c.prefers.Load(),
		Allocations: c.allocations.Load(), Refusals: c.refusals.Load(),
	}
	if text := c.lastError.Load(); text != nil {
		s.LastError = *text
	}
	return s
}

// Registered reports whether the kubelet has registered a resource, and why not if that is known.
func (m *Manager) Registered(resource string) (ok bool, why string) {
	for _, stats := range m.Stats() {
		if stats.Resource == resource {
			return stats.Registered, stats.LastError
		}
	}
	return false, ""
}
