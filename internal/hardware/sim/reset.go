package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ResetError lists the GPUs that could not be reset, with the reason. In that case no GPU was reset.
type ResetError struct{ Refused []ResetRefusal }

// ResetRefusal is one GPU that could not be reset.
type ResetRefusal struct {
	PCIBusID string
	Return   nvml.Return
}

// Error returns all refusals in one line.
func (e *ResetError) Error() string {
	parts := make([]string, len(e.Refused))
	for i, r := range e.Refused {
		reason := "it is lost"
		if r.Return == nvml.ERROR_IN_USE {
			reason = "a process uses it"
		}
		parts[i] = fmt.Sprintf("GPU %s: %s", r.PCIBusID, reason)
	}
	return "reset GPUs: " + strings.Join(parts, "; ")
}

// ResetGPUs resets GPUs, as nvidia-smi --gpu-reset does. A reset removes MIG instances and settings, applies a pending
// MIG mode and completes repairs that need a reset. If one of the GPUs is lost or used by a process, none is reset.
func (m *Machine) ResetGPUs(refs ...string) error {
	err := m.change(func(st *state) ([]event, error) {
		var slots []int
		refused := &ResetError{}
		for _, ref := range refs {
			at, err := find(m.hw, st, ref)
			if err != nil {
				return nil, fmt.Errorf("reset GPUs: %w", err)
			}
			if ret := st.GPUs[at.slot].refusesReset(); ret != nvml.SUCCESS {
				refused.Refused = append(refused.Refused, ResetRefusal{PCIBusID: m.hw.GPUs[at.slot].PCI, Return: ret})
			}
			slots = append(slots, at.slot)
		}
		if len(slots) == 0 {
			return nil, errors.New("reset GPUs: no GPU named: give its number or UUID")
		}
		if len(refused.Refused) > 0 {
			return nil, refused
		}
		var events []event
		for _, slot := range slots {
			resetGPU(m.hw, st, slot)
			events = append(events, event{Type: eventReset, GPU: m.hw.GPUs[slot].UUID, Note: "GPU reset"})
		}
		return events, nil
	})
	return err
}

func (c *gpuState) refusesReset() nvml.Return {
	switch {
	case c.Removed || c.Lost:
		return nvml.ERROR_GPU_IS_LOST
	case c.Busy || len(c.Openers) > 0 || slices.ContainsFunc(c.Instances, func(gi gpuInstance) bool { return gi.Busy }):
		return nvml.ERROR_IN_USE
	}
	return nvml.SUCCESS
}

// resetGPU clears what a reset repairs: volatile error counts, pending row remaps, links that are down, and XIDs,
// except for faults that are permanent.
func resetGPU(hw *hardware, st *state, slot int) {
	before := st.GPUs[slot]
	repairGPU(hw, st, slot)
	c := &st.GPUs[slot]
	c.resetSettings()
	c.Temperature, c.Throttle, c.Hangs, c.CUDA = before.Temperature, before.Throttle, before.Hangs, before.CUDA
	reboot := before.Recovery == RecoveryActions()[nvml.GPU_RECOVERY_ACTION_NODE_REBOOT]
	if reboot || before.Recovery == RecoveryUnsupported {
		c.Recovery, c.RecoveryFrom = before.Recovery, before.RecoveryFrom
	}
	if before.RowRemap == RowRemapFailed {
		c.RowRemap = RowRemapFailed
	}
	for _, xid := range before.XIDs {
		if reboot || xid == xidRowRemapFailed && c.RowRemap == RowRemapFailed {
			c.XIDs = append(c.XIDs, xid)
		}
	}
}

// resetSettings removes what survives neither a reset nor a reboot: MIG instances and settings.
func (c *gpuState) resetSettings() {
	c.MIGEnabled = c.MIGEnabled != c.MIGPending
	c.MIGPending, c.Instances = false, nil
	c.ComputeMode, c.TimeSlice = 0, 0
}

// loadDriver loads the driver again.
func (s *state) loadDriver() {
	s.DriverGone = false
	s.DriverLoads++
	for slot := range s.GPUs {
		s.GPUs[slot].Lives++
	}
}

// Reboot restarts the machine and reloads the driver. All faults end except failed row remaps and removed GPUs; MIG
// instances and settings are gone. The MIG mode survives on Ampere only.
func (m *Machine) Reboot() error {
	err := m.change(func(st *state) ([]event, error) {
		for slot := range st.GPUs {
			before := st.GPUs[slot]
			repairGPU(m.hw, st, slot)
			c := &st.GPUs[slot]
			c.resetSettings()
			c.Removed = before.Removed
			if before.Recovery == RecoveryUnsupported {
				c.Recovery = before.Recovery
			}
			if before.RowRemap == RowRemapFailed {
				c.RowRemap, c.XIDs = RowRemapFailed, []uint64{xidRowRemapFailed}
			}
			if !m.hw.GPUs[slot].modeNeedsReset() {
				c.MIGEnabled = false
			}
		}
		st.CUDA = ""
		st.loadDriver()
		return []event{{Type: eventReset, Note: "reboot"}}, nil
	})
	if err != nil {
		return fmt.Errorf("reboot simulated machine: %w", err)
	}
	return nil
}

// TimeSlices lists nvidia-smi's names of the time slices, indexed by the number that nvidia-smi compute-policy takes.
func TimeSlices() []string { return []string{"Default", "Short", "Medium", "Long"} }

// SetTimeSlice sets how long a process runs on the GPU before the next one, as nvidia-smi compute-policy does. A GPU in
// MIG mode returns NOT_SUPPORTED (an nvml.Return).
func (m *Machine) SetTimeSlice(gpuRef string, slice int) error {
	err := m.change(func(st *state) ([]event, error) {
		at, err := find(m.hw, st, gpuRef)
		if err != nil {
			return nil, err
		}
		if slice < 0 || slice >= len(TimeSlices()) {
			return nil, fmt.Errorf("time slice %d: want 0 to %d", slice, len(TimeSlices())-1)
		}
		c := &st.GPUs[at.slot]
		switch {
		case c.Removed || c.Lost:
			return nil, nvml.ERROR_GPU_IS_LOST
		case c.MIGEnabled:
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		c.TimeSlice = slice
		return []event{{Type: eventSetting, GPU: m.hw.GPUs[at.slot].UUID, Note: "time slice " + TimeSlices()[slice]}}, nil
	})
	if err != nil {
		return fmt.Errorf("set time slice: %w", err)
	}
	return nil
}
