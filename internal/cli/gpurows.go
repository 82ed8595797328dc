package cli

import (
	"fmt"
	"slices"

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

// gpuColumn is a column of the table of GPUs.
type gpuColumn struct {
	head string
	// gpu is the cell of a GPU, mig that of one of its MIG devices; nil where only GPUs have the property.
	gpu func(*v1alpha1.GPUListItem) string
	mig func(*v1alpha1.GPUListItem, *v1alpha1.MIGDevice) string
	// wide is true for a column of -o wide, offers for one of a table with devices that are advertised.
	wide   bool
	offers bool
}

// gpuColumns returns the columns that a table can have.
func gpuColumns() []gpuColumn {
	return []gpuColumn{
		{
			head: "NODE",
			gpu:  nodeOf,
			mig:  func(d *v1alpha1.GPUListItem, _ *v1alpha1.MIGDevice) string { return nodeOf(d) },
		},
		{head: "INDEX", gpu: gpuIndex, mig: migIndex},
		{
			head: "UUID",
			gpu:  func(d *v1alpha1.GPUListItem) string { return d.UUID },
			mig:  func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string { return m.UUID },
		},
		{
			head: "MODEL",
			gpu:  func(d *v1alpha1.GPUListItem) string { return d.Product },
			mig: func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string {
				return "MIG " + m.Profile + ", " + memorySlices(m.Start, m.Size)
			},
		},
		{
			head: "MEMORY",
			gpu:  func(d *v1alpha1.GPUListItem) string { return memory(d.MemoryBytes) },
			mig:  func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string { return memory(m.MemoryBytes) },
		},
		{
			head: "NUMA",
			gpu:  func(d *v1alpha1.GPUListItem) string { return numa(d.NUMANode) },
			mig:  func(d *v1alpha1.GPUListItem, _ *v1alpha1.MIGDevice) string { return numa(d.NUMANode) },
		},
		{
			head: "HEALTH",
			gpu:  func(d *v1alpha1.GPUListItem) string { return evidence.HealthText(d.Health) },
			mig:  func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string { return partHealth(m.Health) },
		},
		{head: "PCI BUS ID", gpu: func(d *v1alpha1.GPUListItem) string { return orElse(d.PCIBusID, "-") }, wide: true},
		{head: "COMPUTE", gpu: func(d *v1alpha1.GPUListItem) string { return orElse(d.ComputeCapability, "-") }, wide: true},
		{head: "CLIQUE", gpu: func(d *v1alpha1.GPUListItem) string { return orElse(d.Clique, "-") }, wide: true},
		{
			head:   "OFFERED AS",
			gpu:    func(d *v1alpha1.GPUListItem) string { return resourceColumn(d.Offered, partitioned(d)) },
			mig:    func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string { return resourceColumn(m.Offered, false) },
			offers: true,
		},
		{
			head: "SHARING",
			gpu:  func(d *v1alpha1.GPUListItem) string { return sharingColumn(d.Offered, d.Holders, partitioned(d)) },
			mig: func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string {
				return sharingColumn(m.Offered, m.Holders, false)
			},
			offers: true,
		},
		{
			head: "HELD BY",
			gpu:  func(d *v1alpha1.GPUListItem) string { return holders(d.Holders, partitioned(d)) },
			mig:  func(_ *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string { return holders(m.Holders, false) },
		},
	}
}

func nodeOf(d *v1alpha1.GPUListItem) string { return orElse(d.Node, "-") }

func gpuIndex(d *v1alpha1.GPUListItem) string { return indexOf(d.Vendor, d.Index) }

func migIndex(d *v1alpha1.GPUListItem, m *v1alpha1.MIGDevice) string {
	return fmt.Sprintf("%s:%d", gpuIndex(d), m.Index)
}

// partitioned reports whether the MIG devices of a GPU are advertised and held in its place.
func partitioned(d *v1alpha1.GPUListItem) bool { return d.MIGEnabled && len(d.MIGDevices) > 0 }

// resourceColumn returns the resource that a device is advertised as; that of a partitioned GPU is in the rows of its MIG devices.
func resourceColumn(offered *v1alpha1.DeviceOffer, partitioned bool) string {
	if offered == nil {
		return withoutOffer(partitioned)
	}
	return offered.Resource
}

func withoutOffer(partitioned bool) string {
	if partitioned {
		return ""
	}
	return "-"
}

// gpuRows are the rows of the table of GPUs, and the notes below it.
type gpuRows struct {
	columns  []gpuColumn
	head     []string
	rows     [][]string
	draining []string
}

// newGPURows returns an empty table.
func newGPURows(offers, wide bool) *gpuRows {
	table := &gpuRows{}
	for _, column := range gpuColumns() {
		if column.wide && !wide || column.offers && !offers {
			continue
		}
		table.columns = append(table.columns, column)
		table.head = append(table.head, column.head)
	}
	return table
}

// addGPU adds the row of a GPU, and one for each of its MIG devices.
func (t *gpuRows) addGPU(d *v1alpha1.GPUListItem) {
	t.add(func(c *gpuColumn) string { return c.gpu(d) })
	t.noteDraining(d, "GPU "+gpuIndex(d), d.Offered)
	for k := range d.MIGDevices {
		m := &d.MIGDevices[k]
		t.add(func(c *gpuColumn) string {
			if c.mig == nil {
				return ""
			}
			return c.mig(d, m)
		})
		t.noteDraining(d, "MIG device "+migIndex(d, m), m.Offered)
	}
}

func (t *gpuRows) add(cell func(*gpuColumn) string) {
	row := make([]string, len(t.columns))
	for i := range t.columns {
		row[i] = cell(&t.columns[i])
	}
	t.rows = append(t.rows, row)
}

// noteDraining adds a note about a device that is not allocated to new pods.
func (t *gpuRows) noteDraining(d *v1alpha1.GPUListItem, device string, offered *v1alpha1.DeviceOffer) {
	if offered != nil && offered.Draining != "" {
		t.draining = append(t.draining, fmt.Sprintf("%s, %s: %s", nodeOf(d), device, offered.Draining))
	}
}
