package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/program"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	stubResource = "example.com/gpu"
	stubGPUs     = 2
	stubImage    = "berth.dev/agent-stub:test"
	// stubMajor is a major number that the kernel reserves for local use, so that no driver has it.
	stubMajor = 240
)

// stubNode is a node with the GPUs of the example vendor beside NVIDIA's.
type stubNode struct {
	*rig
	// root is the folder that describes the GPUs. The agent has its parent, because the folder disappears.
	root string
}

// TestOtherVendor checks that a vendor that Berth does not know, added to the agent by another program, gets its
// devices into pods under its own resource name, and that NVIDIA's GPUs are as they would be alone.
func TestOtherVendor(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	s := &stubNode{rig: r, root: filepath.Join(filepath.Dir(r.node.SimDir()), "stub", "gpus")}
	s.create(t)
	s.importImage(t)
	r.withAgent(t, sandbox.AgentOptions{Image: stubImage, Env: []string{"BERTH_STUB_DIR=" + s.root}, Dirs: []string{filepath.Dir(s.root)}})
	s.waitAdvertised(t, map[string]int{gpuResource: nodeGPUs, stubResource: stubGPUs})
	pods := r.run(t, podWith("other", stubResource, 1), podWithGPUs("beside", 1))
	t.Run("DeviceNodes", func(t *testing.T) { s.testDeviceNodes(t, pods[0], pods[1]) })
	t.Run("GPUs", func(t *testing.T) { s.testGPUs(t, pods[0]) })
	t.Run("Trace", func(t *testing.T) { s.testTrace(t, pods[0], pods[1]) })
	t.Run("Doctor", func(t *testing.T) { r.checkDoctor(t, 0) })
	t.Run("Disappears", func(t *testing.T) { s.testDisappears(t, pods[1]) })
}

// importImage imports the image of the agent with the vendor into the node.
func (s *stubNode) importImage(t testing.TB) {
	t.Helper()
	agent := program.Agent()
	agent.Files["/berth-agent"] = "berth-agent-stub"
	spec, err := agent.Spec(s.State().Bin)
	if err != nil {
		t.Fatal(err)
	}
	img, err := image.Make(stubImage, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.node.ImportImage(timeout(t, time.Minute), img); err != nil {
		t.Fatal(err)
	}
}

// create creates the folder, with device nodes.
func (s *stubNode) create(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { os.RemoveAll(s.root) })
	files := map[string]string{"driver": "1.0"}
	for i := range stubGPUs {
		folder := "gpu" + strconv.Itoa(i)
		files[folder+"/uuid"], files[folder+"/product"], files[folder+"/memory"] = s.uuid(i), "Example One", "1073741824"
	}
	for name, content := range files {
		path := filepath.Join(s.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(s.root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range stubGPUs {
		path := filepath.Join(s.root, s.nodePath(i))
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(stubMajor, uint32(i)))); err != nil {
			t.Fatalf("mknod %s: %v", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // independent of the umask
			t.Fatal(err)
		}
	}
}

func (*stubNode) uuid(index int) string { return "EX-" + strconv.Itoa(index) }

func (*stubNode) nodePath(index int) string { return "/dev/example" + strconv.Itoa(index) }

// waitAdvertised waits until the kubelet and the Node's status have these numbers of devices of each resource.
func (s *stubNode) waitAdvertised(t testing.TB, want map[string]int) {
	t.Helper()
	waitUntil(t, 30*time.Second, fmt.Sprintf("the kubelet and the Node's status have %v", want), func(ctx context.Context) error {
		devices, err := kubelet.NewPodResources(s.node.KubeletDir()).Allocatable(ctx)
		if err != nil {
			return err
		}
		node, err := s.Client().CoreV1().Nodes().Get(ctx, s.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for resource, count := range want {
			healthy := 0
			for _, d := range devices {
				if d.Resource == resource {
					healthy += len(d.IDs)
				}
			}
			shown := node.Status.Allocatable[corev1.ResourceName(resource)]
			if healthy != count || shown.Value() != int64(count) {
				return fmt.Errorf("of %s the kubelet has %d, the Node's status %s", resource, healthy, shown.String())
			}
		}
		return nil
	})
}

// held returns the index of the GPU that the kubelet allocated to the pod.
func (s *stubNode) held(t testing.TB, pod *corev1.Pod) int {
	t.Helper()
	for _, e := range s.allEntries(t) {
		if e.PodUID == string(pod.UID) && e.ResourceName == stubResource {
			ids := e.DeviceIDs.Devices().UnsortedList()
			for i := range stubGPUs {
				if len(ids) == 1 && ids[0] == s.uuid(i) {
					return i
				}
			}
			t.Fatalf("the kubelet gave pod %s %v, want one of the %d GPUs", pod.Name, ids, stubGPUs)
		}
	}
	t.Fatalf("the checkpoint has no device of %s for pod %s", stubResource, pod.Name)
	return 0
}

// testDeviceNodes checks that a pod has the device node of its GPU and none of another GPU, of either vendor.
func (s *stubNode) testDeviceNodes(t *testing.T, other, beside *corev1.Pod) {
	index := s.held(t, other)
	if nodes := s.gpuNodes(t, other); !slices.Equal(nodes, []string{s.nodePath(index)}) {
		t.Errorf("the container has the device nodes %q, want %s alone", nodes, s.nodePath(index))
	}
	if got, want := execIn(t, s.Cluster, other, "stat", s.nodePath(index)), fmt.Sprintf("char 0666 %d:%d", stubMajor, index); got != want {
		t.Errorf("stat %s: %s, want %s", s.nodePath(index), got, want)
	}
	if got := execIn(t, s.Cluster, other, "open", s.nodePath(index)); got != "ENXIO" {
		t.Errorf("open %s: %s, want ENXIO: allowed, and without hardware", s.nodePath(index), got)
	}
	foreign := map[string][2]int{
		"the other GPU": {stubMajor, 1 - index}, "a GPU of NVIDIA": {int(hardware(t, s.node.SimDir()).Majors.NVIDIA), 0},
	}
	for what, numbers := range foreign {
		path := "/tmp/" + strings.ReplaceAll(what, " ", "-")
		execIn(t, s.Cluster, other, "mknod", path, strconv.Itoa(numbers[0]), strconv.Itoa(numbers[1]))
		if got := execIn(t, s.Cluster, other, "open", path); got != "EPERM" {
			t.Errorf("open a node made for %s: %s, want EPERM", what, got)
		}
	}
	for name, value := range s.envIn(t, other) {
		if strings.Contains(name, "NVIDIA") || strings.Contains(name, "CUDA") {
			t.Errorf("the container has the variable %s=%s", name, value)
		}
	}
	s.checkNodes(t, beside, minorsOf(t, hardware(t, s.node.SimDir()), s.assignment(t, beside).uuids))
	s.checkDriver(t, beside, true)
	for _, path := range s.gpuNodes(t, beside) {
		if !strings.HasPrefix(path, "/dev/nvidia") && path != "/dev/dri" {
			t.Errorf("the pod with a GPU of NVIDIA has the device node %s", path)
		}
	}
}

// gpuNodes returns what a container has in /dev in addition to the nodes of one without GPUs.
func (s *stubNode) gpuNodes(t testing.TB, pod *corev1.Pod) []string {
	t.Helper()
	usual := strings.Fields("core fd full mqueue null ptmx pts random shm stderr stdin stdout termination-log tty urandom zero")
	var more []string
	for name := range strings.FieldsSeq(execIn(t, s.Cluster, pod, "ls", "/dev")) {
		if !slices.Contains(usual, name) {
			more = append(more, "/dev/"+name)
		}
	}
	return more
}

// testGPUs checks that berth gpus lists the GPUs of both vendors, and their holders.
func (s *stubNode) testGPUs(t *testing.T, other *corev1.Pod) {
	list := &v1alpha1.GPUList{}
	out := s.inNode(t, 0, "berth", "gpus", "--node-local", "-o", "json")
	if err := json.Unmarshal([]byte(out), list); err != nil || len(list.Items) != nodeGPUs+stubGPUs {
		t.Fatalf("berth gpus lists %d GPUs (%v), want %d:\n%s", len(list.Items), err, nodeGPUs+stubGPUs, out)
	}
	held := s.uuid(s.held(t, other))
	for _, item := range list.Items {
		holders := 0
		for _, h := range item.Holders {
			if h.Pod == other.Name && h.Namespace == other.Namespace {
				holders++
			}
		}
		if want := item.UUID == held; (holders == 1) != want {
			t.Errorf("GPU %s has the pod %d times as its holder, want %v: %+v", item.UUID, holders, want, item.Holders)
		}
	}
}

// testTrace checks that berth trace names the device of each pod, from every source that has it, and finds nothing
// wrong.
func (s *stubNode) testTrace(t *testing.T, other, beside *corev1.Pod) {
	for pod, uuid := range map[*corev1.Pod]string{other: s.uuid(s.held(t, other)), beside: s.assignment(t, beside).uuids[0]} {
		w := &tracer{rig: s.rig, pod: pod, uuids: []string{uuid}, places: map[string]string{
			"--host-root": s.node.Root(), "--cgroup-root": "/" + s.node.Cgroup(), "--sim": s.node.SimDir(), "--kubeconfig": s.KubeconfigPath(),
		}}
		w.places["--agent"] = w.forwardAgent(t, func(state []byte) []byte { return state })
		w.waitPublished(t)
		got := s.berth(t, w.args(nil, pod.Name, "-o", "json")...)
		device := w.checkAgrees(t, got, holdSources).Pods[0].Containers[0].Devices[0]
		if pod == beside {
			continue
		}
		want := []string{"AllocResp", "NVML", "OCI spec", "container"}
		if len(device.Nodes) != 1 || device.Nodes[0].Path != s.nodePath(s.held(t, other)) || !slices.Equal(kindsOf(device.Nodes[0].Sources), want) {
			t.Errorf("the device nodes of %s are %+v, want %s by %q", device.UUID, device.Nodes, s.nodePath(s.held(t, other)), want)
		}
		text := s.berth(t, w.args(nil, pod.Name)...)
		if text.code != 0 || !strings.Contains(text.out, uuid) || !strings.Contains(text.out, stubResource) {
			t.Errorf("berth trace %s: exit code %d, want %s of %s in it:\n%s%s", pod.Name, text.code, uuid, stubResource, text.out, text.err)
		}
	}
}

// testDisappears checks that without the files there are no devices of the other vendor, that NVIDIA's stay, and that
// the others are back with the files.
func (s *stubNode) testDisappears(t *testing.T, beside *corev1.Pod) {
	uuids := s.assignment(t, beside).uuids
	if err := os.RemoveAll(s.root); err != nil {
		t.Fatal(err)
	}
	s.waitAdvertised(t, map[string]int{gpuResource: nodeGPUs, stubResource: 0})
	if got := s.assignment(t, beside).uuids; !slices.Equal(got, uuids) {
		t.Errorf("the pod beside holds %v, held %v before", got, uuids)
	}
	s.create(t)
	s.waitAdvertised(t, map[string]int{gpuResource: nodeGPUs, stubResource: stubGPUs})
}
