package nvidia_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// matrix prints a topology with nvidia-smi's letters.
func matrix(topology gpu.Topology) string {
	var out strings.Builder
	for i, row := range topology {
		line := ""
		for j, link := range row {
			letters := link.Letters()
			if i == j {
				letters = "X"
			} else if link.Switched {
				letters += "*"
			}
			line += fmt.Sprintf("%-6s", letters)
		}
		out.WriteString(strings.TrimSpace(line) + "\n")
	}
	return out.String()
}

func trimmed(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestTopology(t *testing.T) {
	for name, test := range map[string]struct {
		models  []gpus.Config
		prepare func(*testing.T, *node)
		want    string
	}{
		"switched, one with fewer links": {
			gpus.Multiple(3, gpus.A100_SXM4_40GB),
			func(_ *testing.T, n *node) {
				onSwitches(12, n.gpus...)
				n.gpus[2].links[3].down = true
			},
			`X NV12* NV11*
			 NV12* X NV11*
			 NV11* NV11* X`,
		},
		"mixed: the last is on no fabric": {
			gpus.Multiple(3, gpus.A100_SXM4_40GB),
			func(_ *testing.T, n *node) { onSwitches(12, n.gpus[:2]...) },
			`X NV12* SYS
			 NV12* X SYS
			 SYS SYS X`,
		},
		"cube mesh: unequal direct links": {
			gpus.Multiple(3, gpus.A100_SXM4_40GB),
			func(_ *testing.T, n *node) {
				a, b, c := n.gpus[0], n.gpus[1], n.gpus[2]
				a.links = []fakeLink{{to: b.pci}, {to: b.pci}, {to: c.pci}}
				b.links = []fakeLink{{to: a.pci}, {to: a.pci}}
				c.links = []fakeLink{{to: a.pci}}
			},
			`X NV2 NV1
			 NV2 X SYS
			 NV1 SYS X`,
		},
		"a link that one end calls down": {
			gpus.Multiple(2, gpus.A100_SXM4_40GB),
			func(_ *testing.T, n *node) {
				n.gpus[0].links = []fakeLink{{to: n.gpus[1].pci}, {to: n.gpus[1].pci}}
				n.gpus[1].links = []fakeLink{{to: n.gpus[0].pci}, {to: n.gpus[0].pci, down: true}}
			},
			`X NV1
			 NV1 X`,
		},
		"old driver: the far end is known by its PCI class": {
			gpus.Multiple(2, gpus.A100_SXM4_40GB),
			func(t *testing.T, n *node) {
				write(t, filepath.Join(n.roots.Sys, "bus/pci/devices/0000:c0:00.0/class"), "0x068000\n")
				for _, c := range n.gpus {
					c.links = []fakeLink{{to: "0000:c0:00.0", untyped: true}}
				}
			},
			`X NV1*
			 NV1* X`,
		},
		"two cliques do not reach each other": {
			gpus.Multiple(3, gpus.H100_SXM5_80GB),
			func(_ *testing.T, n *node) {
				onSwitches(18, n.gpus...)
				for i, c := range n.gpus {
					c.fabric = nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: [16]uint8{1}, CliqueId: uint32(i / 2)}
				}
			},
			`X NV18* SYS
			 NV18* X SYS
			 SYS SYS X`,
		},
		"a lost GPU has no links": {
			gpus.Multiple(2, gpus.A100_SXM4_40GB),
			func(_ *testing.T, n *node) {
				onSwitches(12, n.gpus...)
				n.gpus[1].broken = nvml.ERROR_GPU_IS_LOST
			},
			`X PHB
			 PHB X`, // from sysfs: one host bridge
		},
		"PCIe levels": {
			gpus.Multiple(4, gpus.A100_PCIE_40GB),
			func(_ *testing.T, n *node) {
				n.ancestor = func(x, y *fakeGPU) (nvml.GpuTopologyLevel, nvml.Return) {
					level := map[int]nvml.GpuTopologyLevel{
						1: nvml.TOPOLOGY_SINGLE, 2: nvml.TOPOLOGY_MULTIPLE, 3: nvml.TOPOLOGY_HOSTBRIDGE,
						4: nvml.TOPOLOGY_NODE, 5: nvml.TOPOLOGY_INTERNAL, 0: nvml.TOPOLOGY_SYSTEM,
					}
					return level[x.Index+y.Index], nvml.SUCCESS
				}
			},
			`X PIX PXB PHB
			 PIX X PHB NODE
			 PXB PHB X PSB
			 PHB NODE PSB X`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.models...)
			test.prepare(t, n)
			got := scan(t, n.adapter()).Topology
			if diff := cmp.Diff(trimmed(test.want), trimmed(matrix(got))); diff != "" {
				t.Errorf("matrix (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPathFromSysfs has an NVML that does not report the PCIe tree.
func TestPathFromSysfs(t *testing.T) {
	for name, test := range map[string]struct {
		chains [2]string
		numa   [2]string
		want   gpu.PCIPath
	}{
		"one switch": {
			[2]string{"pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0", "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:04.0"},
			[2]string{"0", "0"}, gpu.PathSingleSwitch,
		},
		"two switches below a port": {
			[2]string{
				"pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0",
				"pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:04.0/0000:29:00.0/0000:2a:00.0",
			},
			[2]string{"0", "0"}, gpu.PathMultiSwitch,
		},
		"one host bridge":          {[2]string{"pci0000:16/0000:16:01.0", "pci0000:16/0000:16:03.0"}, [2]string{"0", "0"}, gpu.PathHostBridge},
		"one socket":               {[2]string{"pci0000:16/0000:16:01.0", "pci0000:64/0000:64:01.0"}, [2]string{"1", "1"}, gpu.PathSameNUMA},
		"two sockets":              {[2]string{"pci0000:16/0000:16:01.0", "pci0000:97/0000:97:01.0"}, [2]string{"0", "1"}, gpu.PathSystem},
		"the kernel has no answer": {[2]string{"pci0000:16/0000:16:01.0", "pci0000:97/0000:97:01.0"}, [2]string{"-1", "-1"}, gpu.PathSystem},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpus.Multiple(2, gpus.A100_PCIE_40GB)...)
			n.ancestor = func(_, _ *fakeGPU) (nvml.GpuTopologyLevel, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
			for i, c := range n.gpus {
				at := filepath.Join(test.chains[i], c.pci)
				write(t, filepath.Join(n.roots.Sys, "devices", at, "numa_node"), test.numa[i]+"\n")
				link := filepath.Join(n.roots.Sys, "bus/pci/devices", c.pci)
				if err := os.Remove(link); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("../../../devices/"+at, link); err != nil {
					t.Fatal(err)
				}
			}
			if got := scan(t, n.adapter()).Topology[0][1].Path; got != test.want {
				t.Errorf("got %s; want %s", got.Letters(), test.want.Letters())
			}
		})
	}
}

// TestPathIsReadAgain: a path from sysfs is not kept after a transient error of NVML.
func TestPathIsReadAgain(t *testing.T) {
	n := newNode(t, gpus.Multiple(2, gpus.A100_PCIE_40GB)...)
	answer := nvml.ERROR_UNKNOWN
	n.ancestor = func(_, _ *fakeGPU) (nvml.GpuTopologyLevel, nvml.Return) { return nvml.TOPOLOGY_SINGLE, answer }
	a := n.adapter()
	if got := scan(t, a).Topology[0][1].Path; got != gpu.PathHostBridge {
		t.Errorf("in trouble: got %s; want PHB from sysfs", got.Letters())
	}
	answer = nvml.SUCCESS
	if got := scan(t, a).Topology[0][1].Path; got != gpu.PathSingleSwitch {
		t.Errorf("after it: got %s; want PIX", got.Letters())
	}
}
