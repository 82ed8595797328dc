package sim

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// Title returns a one-line description of a profile.
func Title(profileName string) (string, error) {
	machine, err := profile.Load(profileName)
	if err != nil {
		return "", err
	}
	return machine.Title, nil
}

// WriteTable writes a table with the machine, its GPUs and its topology.
func (d *Description) WriteTable(out io.Writer) error {
	driver := fmt.Sprintf("driver %s, CUDA %s", d.Driver, d.CUDA)
	if d.CUDAFault != "" {
		driver += ", fault of libcuda: " + d.CUDAFault
	}
	if !d.DriverLoaded {
		driver = "no driver (unloaded by a fault)"
	}
	nodes := fmt.Sprintf("device nodes: %d (nvidia), %d (nvidia-uvm), %d (nvidia-caps), %d (drm)", d.Majors.NVIDIA,
		d.Majors.NVIDIAUVM, d.Majors.NVIDIACaps, d.Majors.DRM)
	if !d.DeviceNodes {
		nodes = "no device nodes: " + d.NoDeviceNodes
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s: %s\n%s\n%s\n\n", d.Profile, d.Title, driver, nodes)
	fmt.Fprintln(w, "GPU\tINDEX\tUUID\tPRODUCT\tPCI BUS ID\tNUMA\tMEMORY\tNVLINKS\tMIG\tRECOVERY\tFAULTS")
	for _, gpu := range d.GPUs {
		fmt.Fprintln(w, gpu.row())
		if settings := gpu.settings(); settings != "" {
			fmt.Fprintf(w, "\t\t%s\t\t\t\t\t\t\t\t\n", settings)
		}
		for _, m := range gpu.MIGDevices {
			fmt.Fprintf(w, "\t\t%s\tMIG %s\tGI %d, CI %d\t\t\t\t\t\t\n", m.UUID, m.Profile, m.GI, m.CI)
		}
		if gpu.EmptyInstances > 0 {
			fmt.Fprintf(w, "\t\tGPU instances without a compute instance: %d\t\t\t\t\t\t\t\t\n", gpu.EmptyInstances)
		}
	}
	fmt.Fprintln(w)
	if len(d.GPUs) > 0 && d.GPUs[0].Clique != "" {
		fmt.Fprintf(w, "clique %s\n\n", d.GPUs[0].Clique)
	}
	writeMatrix(w, d.Topology)
	return w.Flush()
}

func (g *GPUDescription) row() string {
	index, faults := fmt.Sprint(g.Index), strings.Join(g.Faults, "; ")
	if g.Index < 0 {
		index = "-"
	}
	if faults == "" {
		faults = "-"
	}
	return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%d\t%d MiB\t%d\t%s\t%s\t%s",
		g.Slot, index, g.UUID, g.Product, g.PCIBusID, g.NUMANode, g.MemoryMiB, g.NVLinks, g.MIG, g.Recovery, faults)
}

// settings lists the settings that differ from their value after a reboot.
func (g *GPUDescription) settings() string {
	var parts []string
	if g.MIGAfterReset != "" {
		parts = append(parts, "MIG "+g.MIGAfterReset+" after a reset")
	}
	if g.ComputeMode != "" {
		parts = append(parts, "compute mode "+g.ComputeMode)
	}
	if g.TimeSlice != "" {
		parts = append(parts, "time slice "+g.TimeSlice)
	}
	return strings.Join(parts, ", ")
}

func writeMatrix(w io.Writer, rows [][]string) {
	for j := range rows {
		fmt.Fprintf(w, "\tGPU%d", j)
	}
	fmt.Fprintln(w)
	for i, row := range rows {
		fmt.Fprintf(w, "GPU%d\t%s\n", i, strings.Join(row, "\t"))
	}
}
