package sim

import (
	"errors"
	"fmt"
	"path"
	"slices"
)

// Opener is a program of the simulated host that has a GPU open without running anything on it, such as a
// monitoring program or a display server. NVML lists none of them; /proc/PID/fd does, and the GPU cannot be reset.
type Opener struct {
	PID     int    `json:"pid"`
	Program string `json:"program"`
}

// OpenGPU lets a program open a GPU.
func (m *Machine) OpenGPU(gpuRef string, opener Opener) error {
	if opener.PID <= 0 || opener.Program == "" {
		return errors.New("open simulated GPU: say which process and which program")
	}
	return m.changeOpeners(gpuRef, "opened", func(c *cardState) { c.Openers = append(slices.Clone(c.Openers), opener) })
}

// CloseGPU lets a process close a GPU.
func (m *Machine) CloseGPU(gpuRef string, pid int) error {
	return m.changeOpeners(gpuRef, "closed", func(c *cardState) {
		c.Openers = slices.DeleteFunc(slices.Clone(c.Openers), func(o Opener) bool { return o.PID == pid })
	})
}

func (m *Machine) changeOpeners(gpuRef, what string, edit func(*cardState)) error {
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

// addOpeners adds the processes that have a GPU open, as /proc shows them.
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
