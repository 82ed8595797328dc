package profile

import (
	"errors"
	"fmt"
	"slices"
)

// check returns an error for data that no real machine has. It finds mistakes in the embedded profiles.
func (m *Machine) check(models map[string]Model) error {
	if len(m.GPUs) == 0 {
		return errors.New("no GPUs")
	}
	for i, gpu := range m.GPUs {
		if _, ok := models[gpu.Model]; !ok {
			return fmt.Errorf("GPU %d: unknown model %q", i, gpu.Model)
		}
		if len(gpu.Path) == 0 {
			return fmt.Errorf("GPU %d: no PCI path", i)
		}
		if i > 0 && m.GPUs[i-1].PCI >= gpu.PCI {
			return fmt.Errorf("GPU %d: NVML counts GPUs by PCI bus ID, so %s must come before %s", i, gpu.PCI, m.GPUs[i-1].PCI)
		}
		if !m.hasNode(gpu.NUMA) {
			return fmt.Errorf("GPU %d: no NUMA node %d", i, gpu.NUMA)
		}
	}
	for _, extra := range m.Extras {
		if !slices.Contains([]string{GDRCopy, GDS, MOFED, IMEX}, extra) {
			return fmt.Errorf("unknown extra %q", extra)
		}
	}
	if m.Switch != nil {
		return m.checkSwitch(models)
	}
	return m.checkMesh(models)
}

func (m *Machine) hasNode(id int) bool {
	for _, node := range m.NUMA {
		if node.ID == id {
			return true
		}
	}
	return false
}

func (m *Machine) checkSwitch(models map[string]Model) error {
	total := 0
	for _, n := range m.Switch.Links {
		total += n
	}
	if len(m.Switch.PCI) > 0 && len(m.Switch.PCI) != len(m.Switch.Links) {
		return fmt.Errorf("%d NVSwitches on PCI, links for %d", len(m.Switch.PCI), len(m.Switch.Links))
	}
	for i, gpu := range m.GPUs {
		if have := models[gpu.Model].NVLinks; have != total {
			return fmt.Errorf("GPU %d has %d NVLinks, the fabric uses %d", i, have, total)
		}
	}
	return nil
}

func (m *Machine) checkMesh(models map[string]Model) error {
	if m.Mesh == nil {
		return nil
	}
	if len(m.Mesh) != len(m.GPUs) {
		return fmt.Errorf("mesh has %d rows for %d GPUs", len(m.Mesh), len(m.GPUs))
	}
	for i, row := range m.Mesh {
		if len(row) != len(m.GPUs) {
			return fmt.Errorf("mesh row %d has %d entries for %d GPUs", i, len(row), len(m.GPUs))
		}
		used := 0
		for j, n := range row {
			if n != m.Mesh[j][i] || (i == j && n != 0) {
				return fmt.Errorf("mesh is not symmetric at %d,%d", i, j)
			}
			used += n
		}
		if have := models[m.GPUs[i].Model].NVLinks; used > have {
			return fmt.Errorf("GPU %d has %d NVLinks, the mesh uses %d", i, have, used)
		}
	}
	return nil
}
