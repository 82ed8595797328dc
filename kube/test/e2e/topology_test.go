package e2e

import (
	"context"
	"fmt"
	"math/bits"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// placement is a sequence of pods on a node of its own: the first alone, and then the others at once.
type placement struct {
	pods []int // how many GPUs each requests
	// links is the number of NVLinks at the weakest edge that a ring or a tree over each pod's GPUs needs.
	links int
	numa  bool // each pod's GPUs share a NUMA node
}

// TestPlacement checks which GPUs a pod gets beside other pods. It computes the best set here by trying all sets, over
// the matrix that nvidia-smi would print.
func TestPlacement(t *testing.T) {
	onSharedCluster(t)
	for profile, tests := range map[string]map[string]placement{
		"v100x8-hybrid-mesh": {
			"pairs":      {[]int{2, 2, 2, 2}, 2, false},
			"quadruples": {[]int{4, 4}, 2, true},
			"all":        {[]int{8}, 2, false},
		},
		"l40sx8": {
			"pairs":                {[]int{2, 2, 2, 2}, 0, true},
			"pairs beside one GPU": {[]int{1, 2, 2, 2}, 0, true},
			"quadruples":           {[]int{4, 4}, 0, true},
		},
	} {
		t.Run(profile, func(t *testing.T) {
			r := theNode(t)
			machine := r.withHardware(t, profile)
			for title, test := range tests {
				t.Run(title, func(t *testing.T) { test.check(t, r, machine) })
			}
		})
	}
}

func (p placement) check(t *testing.T, r *rig, machine sim.Description) {
	var rest []*corev1.Pod
	for i, count := range p.pods[1:] {
		rest = append(rest, podWithGPUs("rest-"+strconv.Itoa(i), count))
	}
	running := append(r.run(t, podWithGPUs("first", p.pods[0])), r.run(t, rest...)...)
	taken := set(0)
	for i, count := range p.pods {
		got := set(0)
		for _, uuid := range r.assignment(t, running[i]).uuids {
			got |= 1 << gpuOf(t, machine, uuid).Index
		}
		if bits.OnesCount(uint(got)) != count || got&taken != 0 {
			t.Fatalf("pod %s requested %d GPUs and got %s; held by others were %s", running[i].Name, count, got, taken)
		}
		taken |= got
		if count == 1 {
			continue
		}
		links, nodes := bottleneck(machine, got), numaNodes(machine, got)
		t.Logf("pod %s got the GPUs %s: bottleneck %d NVLinks, NUMA nodes %v", running[i].Name, got, links, nodes)
		if links != p.links {
			t.Errorf("pod %s got the GPUs %s with %d NVLinks at the weakest edge, want %d", running[i].Name, got, links, p.links)
		}
		if best := bestBottleneck(machine, count); i == 0 && links != best {
			t.Errorf("the best %d GPUs have %d NVLinks at the weakest edge, %s have %d", count, best, got, links)
		}
		if p.numa && len(nodes) != 1 {
			t.Errorf("pod %s got the GPUs %s of the NUMA nodes %v, want one", running[i].Name, got, nodes)
		}
	}
}

// simulatedDriver returns the path of the driver that simulated machines get, beside the other programs.
func (r *rig) simulatedDriver(t testing.TB) sim.Files {
	t.Helper()
	files, err := sim.FindFiles(r.State().Bin)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// withHardware replaces the node's machine until the test ends, by starting its agent on another directory. That takes
// a second; a sandbox of its own would take ten.
func (r *rig) withHardware(t testing.TB, profile string) sim.Description {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sim")
	if _, err := sim.CreateWith(dir, profile, sim.Options{Seed: profile, Files: r.simulatedDriver(t)}); err != nil {
		t.Fatal(err)
	}
	machine := hardware(t, dir)
	if len(machine.GPUs) != nodeGPUs {
		t.Fatalf("%s has %d GPUs, want %d", profile, len(machine.GPUs), nodeGPUs)
	}
	r.withAgent(t, onHardware(dir))
	// The number of GPUs is eight before and after, so it cannot show the change.
	waitUntil(t, 15*time.Second, "the kubelet has the GPUs of "+profile, func(ctx context.Context) error {
		devices, err := kubelet.NewPodResources(r.node.KubeletDir()).Allocatable(ctx)
		if err != nil {
			return err
		}
		for _, gpuInfo := range machine.GPUs {
			if !offered(devices, gpuInfo.UUID) {
				return fmt.Errorf("it has no %s", gpuInfo.UUID)
			}
		}
		return nil
	})
	return machine
}

// onHardware returns the options of an agent on the simulated machine in another directory.
func onHardware(dir string) sandbox.AgentOptions {
	return sandbox.AgentOptions{Args: []string{"--sim=" + dir}, Dirs: []string{dir}}
}

func offered(devices []kubelet.Devices, uuid string) bool {
	for _, d := range devices {
		for _, id := range d.IDs {
			if d.Resource == gpuResource && id == uuid {
				return true
			}
		}
	}
	return false
}

// set is a set of GPUs by index.
type set uint

func (s set) String() string {
	var names []string
	for rest := uint(s); rest != 0; rest &= rest - 1 {
		names = append(names, strconv.Itoa(bits.TrailingZeros(rest)))
	}
	return "{" + strings.Join(names, " ") + "}"
}

// bottleneck is the largest number of NVLinks such that edges of at least this number connect the GPUs: the bandwidth
// limit of a ring or tree over them.
func bottleneck(machine sim.Description, s set) int {
	for links := 18; links > 0; links-- {
		reached := s & -s
		for grown := true; grown; {
			grown = false
			for a := range machine.GPUs {
				for b := range machine.GPUs {
					if reached&(1<<a) != 0 && s&^reached&(1<<b) != 0 && nvlinks(machine, a, b) >= links {
						reached |= 1 << b
						grown = true
					}
				}
			}
		}
		if reached == s {
			return links
		}
	}
	return 0
}

// nvlinks parses a cell of nvidia-smi's matrix: NV2 are two links.
func nvlinks(machine sim.Description, a, b int) int {
	digits, ok := strings.CutPrefix(machine.Topology[a][b], "NV")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return 0
	}
	return n
}

// bestBottleneck is the largest bottleneck of any set of this many GPUs.
func bestBottleneck(machine sim.Description, count int) int {
	best := 0
	for s := range set(1) << len(machine.GPUs) {
		if bits.OnesCount(uint(s)) == count {
			best = max(best, bottleneck(machine, s))
		}
	}
	return best
}

func numaNodes(machine sim.Description, s set) []int {
	var nodes []int
	for i, gpuInfo := range machine.GPUs {
		if s&(1<<i) != 0 {
			nodes = append(nodes, gpuInfo.NUMANode)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
