package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/workload"
)

const (
	// migGPU is the GPU that the MIG tests partition into migDevices devices of migResource, each shared as migReplicas
	// replicas.
	migGPU, migDevices, migReplicas = 3, 7, 4
	migResource                     = "nvidia.com/mig-1g.10gb"

	migRule = `
gpus:
- select: {index: [3]}
  mig: {devices: {1g.10gb: 7}}
`
)

// testMIG partitions one GPU, and checks how its MIG devices are advertised, what a pod with one of them can and cannot
// access, and how many pods the GPU serves.
func testMIG(t *testing.T, s *sharingRig) {
	gpuInfo := s.machine(t).GPUs[migGPU]
	before := resets(t, s.node.SimDir())
	s.configure(t, migRule)
	s.waitOffers(t, offers{gpuResource: 7, migResource: migDevices})
	s.waitCapacity(t, migResource, migDevices)
	// An A100 is partitioned only after a reset, and no GPU of another pod is reset for that.
	if got := resets(t, s.node.SimDir())[len(before):]; !slices.Equal(got, []string{gpuInfo.UUID}) {
		t.Errorf("these GPUs were reset: %v, want %s alone", got, gpuInfo.UUID)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *sharingRig, sim.GPUDescription)
	}{
		{"ItsNodesAlone", testMIGNodes},
		{"TwentyEightPods", testMIGPods},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, s, gpuOf(t, s.machine(t), gpuInfo.UUID)) }) {
			t.FailNow()
		}
	}
	s.configure(t, `
gpus:
- select: {index: [3]}
  mig: {layout: all-disabled}
`)
	s.waitHealthy(t, offers{gpuResource: 8})
	s.configure(t, "")
}

// resets returns the GPUs that were reset, in order.
func resets(t testing.TB, simDir string) []string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(simDir, "root/var/lib/berth-sim/events.log"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range bytes.Lines(log) {
		var event struct{ Type, GPU string }
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("read event: %v: %s", err, line)
		}
		if event.Type == "reset" {
			found = append(found, event.GPU)
		}
	}
	return found
}

// migOf finds the MIG device of a UUID on a GPU.
func migOf(t testing.TB, gpuInfo sim.GPUDescription, uuid string) sim.MIGDescription {
	t.Helper()
	i := slices.IndexFunc(gpuInfo.MIGDevices, func(d sim.MIGDescription) bool { return d.UUID == uuid })
	if i < 0 {
		t.Fatalf("the GPU %s has no MIG device %s", gpuInfo.UUID, uuid)
	}
	return gpuInfo.MIGDevices[i]
}

// capabilities returns the minor numbers, according to the driver, of the two nodes below /dev/nvidia-caps that open a
// MIG device: of its GPU instance and of its compute instance.
func (r *rig) capabilities(t testing.TB, gpuInfo sim.GPUDescription, device sim.MIGDescription) []uint32 {
	t.Helper()
	instance := filepath.Join(r.node.SimDir(), "root/proc/driver/nvidia/capabilities",
		fmt.Sprintf("gpu%d/mig/gi%d", gpuInfo.Minor, device.GI))
	var minors []uint32
	for _, path := range []string{filepath.Join(instance, "access"), filepath.Join(instance, fmt.Sprintf("ci%d", device.CI), "access")} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		minor, err := strconv.ParseUint(strings.TrimPrefix(first, "DeviceFileMinor: "), 10, 32)
		if err != nil {
			t.Fatalf("read %s: %v", path, err)
		}
		minors = append(minors, uint32(minor))
	}
	slices.Sort(minors)
	return minors
}

// capsOf returns the minor numbers of the nodes below /dev/nvidia-caps among nodes, ascending.
func capsOf(nodes []workload.Device) []uint32 {
	var minors []uint32
	for _, node := range nodes {
		if strings.HasPrefix(node.Path, "/dev/nvidia-caps/") {
			minors = append(minors, node.Minor)
		}
	}
	slices.Sort(minors)
	return minors
}

// placementOf formats where a MIG device is on its GPU.
func placementOf(d sim.MIGDescription) string {
	return fmt.Sprintf("GI %d, CI %d, memory slice %d", d.GI, d.CI, d.Start)
}

// testMIGNodes checks that a pod with a MIG device has the nodes of the GPU and of its own instances, and can open
// nothing else: no sibling, no other GPU, and no node that allows partitioning.
func testMIGNodes(t *testing.T, s *sharingRig, gpuInfo sim.GPUDescription) {
	pods := s.run(t, podWith("one-slice", migResource, 1), podWith("sibling", migResource, 1))
	pod := pods[0]
	mine := migOf(t, gpuInfo, s.idsOf(t, pod)[0])
	nodes, own := nodesIn(t, pod), s.capabilities(t, gpuInfo, mine)
	if got := capsOf(nodes); !slices.Equal(got, own) {
		t.Errorf("below /dev/nvidia-caps the container has the minors %v, want %v of GPU instance %d and compute "+
			"instance %d", got, own, mine.GI, mine.CI)
	}
	// The GPU's own node, the control nodes, and those of the other GPUs, which the container cannot open.
	s.checkNodes(t, pod, []uint32{uint32(gpuInfo.Minor)})
	machine := s.machine(t)
	for _, minor := range own {
		path := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)
		if got := execIn(t, s.Cluster, pod, "stat", path); !strings.HasPrefix(got, "char ") ||
			!strings.HasSuffix(got, fmt.Sprintf(" %d:%d", machine.Majors.NVIDIACaps, minor)) {
			t.Errorf("stat %s: %s, want a character device %d:%d", path, got, machine.Majors.NVIDIACaps, minor)
		}
		if got := execIn(t, s.Cluster, pod, "open", path); got != "ENXIO" {
			t.Errorf("open %s: %s, want ENXIO: allowed, and without hardware", path, got)
		}
	}
	// Nodes 1 and 2 give the right to partition GPUs and to monitor all instances.
	strange := []uint32{1, 2}
	for _, sibling := range gpuInfo.MIGDevices {
		if sibling.UUID != mine.UUID {
			strange = append(strange, s.capabilities(t, gpuInfo, sibling)...)
		}
	}
	if len(strange) != 2+2*(migDevices-1) {
		t.Fatalf("the siblings have the nodes %v", strange)
	}
	for _, minor := range strange {
		path := fmt.Sprintf("/tmp/cap%d", minor)
		execIn(t, s.Cluster, pod, "mknod", path, fmt.Sprint(machine.Majors.NVIDIACaps), fmt.Sprint(minor))
		if got := execIn(t, s.Cluster, pod, "open", path); got != "EPERM" {
			t.Errorf("open a node made for nvidia-cap%d, which the pod does not hold: %s, want EPERM", minor, got)
		}
	}
	i := slices.IndexFunc(gpuInfo.MIGDevices, func(d sim.MIGDescription) bool { return d.UUID == mine.UUID })
	s.checkShown(t, pod, shown{
		index: fmt.Sprintf("%d:%d", migGPU, i), placement: placementOf(mine), column: migResource, neighbours: pods[1:],
	})
	if err := s.remove(timeout(t, 30*time.Second), pods...); err != nil {
		t.Fatal(err)
	}
}

// testMIGPods checks that seven MIG devices of four time slices each serve 28 pods, all started at once, four on each
// device; a 29th waits.
func testMIGPods(t *testing.T, s *sharingRig, gpuInfo sim.GPUDescription) {
	s.configure(t, migRule+`
migDevices:
- select: {gpu: [3]}
  sharing: {mode: timeSlicing, replicas: 4}
`)
	const total = migDevices * migReplicas
	s.waitOffers(t, offers{gpuResource: 7, migResource: total})
	var pods []*corev1.Pod
	for i := range total {
		pods = append(pods, podWith(fmt.Sprintf("slice-%02d", i), migResource, 1))
	}
	start := time.Now()
	pods = s.runMany(t, pods)
	t.Logf("%d pods on one GPU run %s after the first was created", total, ms(time.Since(start)))
	count, ids := map[string]int{}, map[string]bool{}
	for _, pod := range pods {
		id := s.idsOf(t, pod)[0]
		ids[id] = true
		mine := migOf(t, gpuInfo, uuidOf(id))
		count[mine.UUID]++
		nodes := nodesIn(t, pod)
		if got, want := capsOf(nodes), s.capabilities(t, gpuInfo, mine); !slices.Equal(got, want) {
			t.Errorf("pod %s got %s and has the minors %v below /dev/nvidia-caps, want %v", pod.Name, id, got, want)
		}
		if i := slices.IndexFunc(nodes, func(d workload.Device) bool {
			return gpuNode.MatchString(d.Path) &&
				d.Minor != uint32(gpuInfo.Minor)
		}); i >= 0 {
			t.Errorf("pod %s has %s of another GPU", pod.Name, nodes[i].Path)
		}
	}
	if len(ids) != total {
		t.Errorf("the kubelet allocated %d different replicas, want %d", len(ids), total)
	}
	for _, device := range gpuInfo.MIGDevices {
		if count[device.UUID] != migReplicas {
			t.Errorf("MIG device %s serves %d pods, want %d", device.UUID, count[device.UUID], migReplicas)
		}
	}
	if len(gpuInfo.MIGDevices) != migDevices || len(count) != migDevices {
		t.Errorf("%d pods are on the MIG devices %v", total, slices.Sorted(maps.Keys(count)))
	}
	first := migOf(t, gpuInfo, uuidOf(s.idsOf(t, pods[0])[0]))
	want := shown{
		index: fmt.Sprintf("%d:%d", migGPU, slices.Index(gpuInfo.MIGDevices, first)), placement: placementOf(first),
		replica: s.replicaOf(t, pods[0], migReplicas), sharing: "time-slicing: not limited, not isolated", column: "time-slicing x4, 4 held",
	}
	for _, pod := range pods[1:] {
		if uuidOf(s.idsOf(t, pod)[0]) == first.UUID {
			want.with = append(want.with, pod)
		} else {
			want.neighbours = append(want.neighbours, pod)
		}
	}
	s.checkShown(t, pods[0], want)
	late := podWith("slice-late", migResource, 1)
	t.Cleanup(func() { s.cleanUp(t, late) })
	if _, err := s.CreatePod(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	s.waitUnschedulable(t, late)
	if err := s.remove(timeout(t, time.Minute), append(pods, late)...); err != nil {
		t.Fatal(err)
	}
}

// runMany is run with more time, for more pods than a machine starts in half a minute.
func (r *rig) runMany(t testing.TB, pods []*corev1.Pod) []*corev1.Pod {
	t.Helper()
	t.Cleanup(func() { r.cleanUp(t, pods...) })
	running := make([]*corev1.Pod, len(pods))
	group, ctx := errgroup.WithContext(timeout(t, 2*time.Minute))
	for i, pod := range pods {
		group.Go(func() error {
			if _, err := r.CreatePod(ctx, pod); err != nil {
				return err
			}
			var err error
			running[i], err = r.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodRunning)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return running
}
