package sim

import (
	"errors"
	"fmt"
	"path"
	"slices"
)

// Opener is a host program that has a GPU open without running anything on it, such as a monitoring program or a
// display server. NVML does not list it, /proc/PID/fd does, and the GPU cannot be reset.
type Opener struct {
	PID     int    `json:"pid"`
	Program string `json:"program"`
}

// OpenGPU simulates that a program opens a GPU.
func (m *Machine) OpenGPU(gpuRef string, opener Opener) error {
	if opener.PID <= 0 || opener.Program == "" {
		return errors.New("open simulated GPU: want a process ID and a program name")
	}
	return m.changeOpeners(gpuRef, "opened", func(c *gpuState) { c.Openers = append(slices.Clone(c.Openers), opener) })
}

// CloseGPU simulates that a process closes a GPU.
func (m *Machine) CloseGPU(gpuRef string, pid int) error {
	return m.changeOpeners(gpuRef, "closed", func(c *gpuState) {
		c.Openers = slices.DeleteFunc(slices.Clone(c.Openers), func(o Opener) bool { return o.PID == pid })
	})
}

func (m *Machine) changeOpeners(gpuRef, what string, edit func(*gpuState)) error {
	err := m.change(func(st *state) ([]event, error) {
		at, err := find(m.hw, st, gpuRef)
		if err != nil {
			return nil, err
		}
		edit(&st.GPUs[at.slot])
		return []event{{Type: eventSetting, GPU: m.hw.GPUs[at.slot].UUID, Note: "GPU " + what}}, nil
	})
	if err != nil {
		return fmt.Errorf("change who has a simulated GPU open: %w", err)
	}
	return nil
}

// addOpeners adds the /proc entries of the processes that have a GPU open.
func addOpeners(b *treeBuilder, hw *hardware, st *state) {
	descriptors := map[int]int{}
	for slot := range hw.GPUs {
		for _, o := range st.GPUs[slot].Openers {
			process := fmt.Sprintf("proc/%d", o.PID)
			if descriptors[o.PID] == 0 {
				b.file(path.Join(process, "comm"), o.Program+"\n")
				b.link(path.Join(process, "fd/0"), "/dev/null")
			}
			descriptors[o.PID]++
			b.link(path.Join(process, "fd", fmt.Sprint(descriptors[o.PID])), fmt.Sprintf("../../../dev/nvidia%d", hw.GPUs[slot].Minor))
		}
	}
}
