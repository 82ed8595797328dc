package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/spf13/cobra"
)

func newTopoCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	cmd := &cobra.Command{
		Use:   "topo [NODE]",
		Short: "Show the links between a node's GPUs, as nvidia-smi topo -m does",
		Long: `Print the matrix of links between the GPUs of a node, with the abbreviations of nvidia-smi, and
the NUMA node of each GPU. It reads the node's GPUNode object, the hardware of this node
(--node-local) or of a simulated one (--sim).`,
		Example: `  berth topo node-0
  berth topo --node-local
  berth topo --sim /tmp/node`,
		Args: atMostOneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			topology, err := readTopology(cmd.Context(), &from, args)
			if err != nil {
				return err
			}
			return out.print(deps.Out, topology, func(w io.Writer) error { return topoTable(w, topology) })
		},
	}
	from.bind(cmd.Flags(), deps)
	from.bindSelector(cmd.Flags())
	out.bind(cmd.Flags())
	return cmd
}

func readTopology(ctx context.Context, from *sources, args []string) (*v1alpha1.GPUTopology, error) {
	nodes, _, err := gpuNodes(ctx, from, "topo", args)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		var names []string
		for _, node := range nodes {
			names = append(names, node.Name)
		}
		if len(names) == 0 {
			return nil, &hintError{fmt.Errorf("topo: there are no GPUNode objects"),
				"berth-agent publishes them; without: berth topo --node-local on the node, or --sim DIR"}
		}
		return nil, usagef("topo: want the name of one node: %s", strings.Join(names, ", "))
	}
	return topologyOf(&nodes[0])
}

func topologyOf(node *v1alpha1.GPUNode) (*v1alpha1.GPUTopology, error) {
	devices := node.Status.Devices
	topology := &v1alpha1.GPUTopology{
		TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUTopology), Node: node.Name,
		GPUs: []v1alpha1.TopologyGPU{}, Links: [][]string{},
	}
	where, rows := orElse(node.Name, "this node"), node.Status.Topology
	if len(rows) == 0 && len(devices) > 0 {
		return nil, fmt.Errorf("read topology of %s: the links of its %d GPUs are not known", where, len(devices))
	}
	if _, err := gpu.ParseTopologies(len(devices), rows, node.Status.PCITopology); err != nil {
		return nil, fmt.Errorf("read topology of %s: %w", where, err)
	}
	for i, d := range devices {
		topology.GPUs = append(topology.GPUs, v1alpha1.TopologyGPU{Vendor: d.Vendor, Index: d.Index, UUID: d.UUID, Product: d.Product,
			PCIBusID: d.PCIBusID, NUMANode: d.NUMANode})
		topology.Links = append(topology.Links, strings.Fields(rows[i]))
	}
	return topology, nil
}

func topoTable(w io.Writer, t *v1alpha1.GPUTopology) error {
	if len(t.GPUs) == 0 {
		_, err := fmt.Fprintln(w, "no GPUs")
		return err
	}
	var heads []string
	var more [][]string
	for _, g := range t.GPUs {
		heads = append(heads, strings.TrimSpace(fmt.Sprintf("%s GPU%d", g.Vendor, g.Index)))
		more = append(more, []string{numa(g.NUMANode), g.PCIBusID})
	}
	if err := term.Matrix(w, heads, t.Links, []string{"NUMA AFFINITY", "PCI BUS ID"}, more); err != nil {
		return err
	}
	_, err := io.WriteString(w, legend(t.Links))
	return err
}

// legend explains the abbreviations that occur.
func legend(links [][]string) string {
	meanings := [...][2]string{
		{gpu.Self, "itself"},
		{"NV#", "# NVLinks"},
		{"PSB", "two GPUs of one board"},
		{"PIX", "PCIe, through one switch at most"},
		{"PXB", "PCIe, through several switches, no host bridge"},
		{"PHB", "PCIe, through a host bridge (the CPU)"},
		{"NODE", "PCIe, between host bridges of one NUMA node"},
		{"SYS", "PCIe, between NUMA nodes (the sockets' link)"},
		{"?", "the driver does not say"},
	}
	occurs := func(letters string) bool {
		return slices.ContainsFunc(links, func(row []string) bool {
			return slices.ContainsFunc(row, func(cell string) bool {
				return cell == letters || (letters == "NV#" && strings.HasPrefix(cell, "NV"))
			})
		})
	}
	var out strings.Builder
	out.WriteString("\n")
	for _, meaning := range meanings {
		if occurs(meaning[0]) {
			fmt.Fprintf(&out, "%-4s  %s\n", meaning[0], meaning[1])
		}
	}
	return out.String()
}
