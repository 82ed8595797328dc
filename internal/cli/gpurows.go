package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/print"
)

// heldIn leaves in the list the GPUs and MIG devices that the namespace holds; "" is all.
func heldIn(list *v1alpha1.GPUList, namespace string) {
	if namespace == "" {
		return
	}
	other := func(held []v1alpha1.Holder) bool {
		return !slices.ContainsFunc(held, func(h v1alpha1.Holder) bool { return h.Namespace == namespace })
	}
	for i := range list.Items {
		d := &list.Items[i]
		d.MIGDevices = slices.DeleteFunc(slices.Clone(d.MIGDevices), func(m v1alpha1.MIGDevice) bool { return other(m.Holders) })
	}
	list.Items = slices.DeleteFunc(list.Items, func(d v1alpha1.GPUListItem) bool { return len(d.MIGDevices) == 0 && other(d.Holders) })
}

// gpuRowsOf returns the GPUs as rows.
func gpuRowsOf(list *v1alpha1.GPUList) print.Rows {
	return print.Of(list.Items, func(d *v1alpha1.GPUListItem) string { return "gpu/" + d.UUID })
}

// newGPURows returns an empty table.
func newGPURows(offers, wide bool) *gpuRows {
	table := &gpuRows{head: []string{"NODE", "INDEX", "UUID", "MODEL", "MEMORY", "NUMA", "HEALTH"}, offers: offers, wide: wide}
	if wide {
		table.head = append(table.head, "PCI BUS ID", "COMPUTE", "CLIQUE")
	}
	if offers {
		table.head = append(table.head, "OFFERED AS", "SHARING")
	}
	table.head = append(table.head, "HELD BY")
	return table
}

// addGPU adds the row of a GPU, and one for each of its MIG devices.
func (t *gpuRows) addGPU(d *v1alpha1.GPUListItem) {
	node, partitioned := orElse(d.Node, "-"), d.MIGEnabled && len(d.MIGDevices) > 0
	row := []string{node, indexOf(d.Vendor, d.Index), d.UUID, d.Product, memory(d.MemoryBytes), numa(d.NUMANode), evidence.HealthText(d.Health)}
	if t.wide {
		row = append(row, orElse(d.PCIBusID, "-"), orElse(d.ComputeCapability, "-"), orElse(d.Clique, "-"))
	}
	t.add(row, d.Offered, d.Holders, partitioned)
	for k := range d.MIGDevices {
		mig := &d.MIGDevices[k]
		row := []string{node, fmt.Sprintf("%s:%d", indexOf(d.Vendor, d.Index), mig.Index), mig.UUID, "MIG " + mig.Profile + ", " + memorySlices(mig.Start, mig.Size),
			memory(mig.MemoryBytes), numa(d.NUMANode), partHealth(mig.Health)}
		if t.wide {
			row = append(row, "", "", "")
		}
		t.add(row, mig.Offered, mig.Holders, false)
	}
}

// gpuRows are the rows of the table of GPUs, and the notes below it.
type gpuRows struct {
	head []string
	// offers and wide say which columns there are.
	offers   bool
	wide     bool
	rows     [][]string
	draining []string
}

// add completes a row with the resource that the device is advertised as, if there is any, and with its holders.
func (t *gpuRows) add(row []string, offered *v1alpha1.DeviceOffer, held []v1alpha1.Holder, partitioned bool) {
	if t.offers {
		resource, sharing := "-", "-"
		switch {
		case offered != nil:
			resource, sharing = offered.Resource, sharingColumn(offered, held)
		case partitioned:
			resource, sharing = "", "" // its MIG devices have them
		}
		row = append(row, resource, sharing)
	}
	t.rows = append(t.rows, append(row, holders(held, partitioned)))
	if offered != nil && offered.Draining != "" {
		name := "GPU " + row[1]
		if strings.Contains(row[1], ":") {
			name = "MIG device " + row[1]
		}
		t.draining = append(t.draining, fmt.Sprintf("%s, %s: %s", row[0], name, offered.Draining))
	}
}
