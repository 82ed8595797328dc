package pool

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// taintHealth is the name of the taint, in the domain of the driver; its value is the state.
const taintHealth = "/health"

// taints returns the taint that follows from a verdict; none for a healthy device. TimeAdded is left to the API server.
//
//	state                                      effect
//	Healthy                                    no taint
//	Degraded                                   None: the device is allocated, and the taint shows why it may be replaced
//	Draining                                   NoSchedule: pods keep the device
//	Unhealthy, NeedsReset, NeedsReboot, Gone   NoSchedule, or NoExecute from Settings.EvictFrom on
func (s *Settings) taints(verdict gpu.Health) []resourceapi.DeviceTaint {
	state := verdict.State
	if state.Class() == gpu.Healthy {
		return nil
	}
	effect := resourceapi.DeviceTaintEffectNoSchedule
	switch {
	case state.Allocatable():
		effect = resourceapi.DeviceTaintEffectNone
	case s.EvictFrom != "" && state.Worse(gpu.Draining) && !s.EvictFrom.Worse(state):
		effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return []resourceapi.DeviceTaint{{Key: s.driver() + taintHealth, Value: string(state), Effect: effect}}
}
