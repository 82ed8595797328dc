package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/offer"
)

func printGPUs(out io.Writer, snapshot *gpu.Snapshot) error {
	for _, fault := range snapshot.Faults {
		fmt.Fprintf(out, "%s: %s\n", fault.Code, fault.Message)
	}
	for _, vendor := range snapshot.Vendors {
		text := fmt.Sprintf("driver %s", vendor.Driver.Version)
		if snapshot.SeveralVendors() {
			text = vendor.Name + " " + text
		}
		if vendor.Driver.CUDA != (gpu.Version{}) {
			text += fmt.Sprintf(", CUDA %s", vendor.Driver.CUDA)
		}
		if vendor.Driver.Present() {
			fmt.Fprintln(out, text)
		}
	}
	head := []string{"INDEX", "UUID", "MODEL", "PCI BUS ID", "NUMA", "MEMORY", "HEALTH"}
	var rows [][]string
	for i := range snapshot.GPUs {
		device := &snapshot.GPUs[i]
		row := []string{
			strconv.Itoa(device.Index), string(device.UUID), device.Product, device.PCI.String(), numa(device.NUMANode),
			memory(device.MemoryBytes), trace.HealthText(device.Health),
		}
		if snapshot.SeveralVendors() {
			row = append([]string{device.Vendor}, row...)
		}
		rows = append(rows, row)
	}
	if snapshot.SeveralVendors() {
		head = append([]string{"VENDOR"}, head...)
	}
	return printTable(out, head, rows)
}

func printOffers(out io.Writer, offers []offer.Offer) error {
	var rows [][]string
	for _, o := range offers {
		for _, device := range o.Devices {
			state := string(device.Health)
			if device.Reason != "" {
				state += ": " + device.Reason
			}
			rows = append(rows, []string{o.Resource, device.ID, device.Index, numa(device.NUMANode), state})
		}
	}
	return printTable(out, []string{"RESOURCE", "DEVICE ID", "INDEX", "NUMA", "HEALTH"}, rows)
}

func printTable(out io.Writer, head []string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// memory returns "-" for a GPU that does not report its memory.
func memory(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return strconv.FormatUint(bytes>>20, 10) + " MiB"
}

func numa(node int) string {
	if node == gpu.NoNUMANode {
		return "-"
	}
	return strconv.Itoa(node)
}

// printJSON prints a value in a versioned object, so that scripts can detect a changed format.
func printJSON(out io.Writer, kind, field string, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"apiVersion": v1alpha1.GroupVersion().String(), "kind": kind, field: value})
}
