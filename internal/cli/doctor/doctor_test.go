package doctor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/doctor"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
)

const agentSocket = "/run/berth/agent.sock"

// host is a healthy node: a simulated machine's tree with the other files of a host.
type host struct {
	t      *testing.T
	root   string
	deps   doctor.Deps
	agent  agentState
	api    *fakeAPI
	plugin net.Listener
}

type agentState struct {
	Ready     string        `json:"ready"`
	Node      string        `json:"node"`
	Inventory *gpu.Snapshot `json:"inventory"`
	Problems  []gpu.Cause   `json:"problems"`
	Config    struct {
		Config *v1alpha1.AgentConfig `json:"config"`
	} `json:"config"`
}

const (
	lib       = "/usr/lib/x86_64-linux-gnu"
	specFile  = "/var/run/cdi/k8s.berth.dev-gpu.json"
	runConfig = "/etc/containerd/config.toml"
)

func newHost(t *testing.T) *host {
	t.Helper()
	if err := unix.Mknod(filepath.Join(t.TempDir(), "probe"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip("this user may not make device nodes")
	}
	// The path of a socket is limited to 108 bytes.
	dir, err := os.MkdirTemp("", "doctor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	machine, err := sim.CreateWith(filepath.Join(dir, "m"), "a30x4", sim.Options{Seed: "doctor"})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, root: machine.Root()}
	if _, err := os.Stat(h.path("/proc/driver/nvidia/version")); err != nil {
		t.Fatal(err)
	}
	h.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	h.migDevice()
	h.linkDevices()
	h.write(specFile, spec(`{"path": "/dev/nvidia0", "major": 195, "minor": 0}, {"path": "/dev/nvidiactl"}`, lib+"/libcuda.so.1"))
	h.write(runConfig, "version = 3\n")
	h.plugin = h.listen("/var/lib/kubelet/device-plugins/kubelet.sock")
	h.listen("/var/lib/kubelet/pod-resources/kubelet.sock")
	h.agent = agentState{Ready: "yes", Node: "node-0", Inventory: &gpu.Snapshot{GPUs: make([]gpu.GPU, 4)}}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/state" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(h.agent)
	})}
	listener := h.listen(agentSocket)
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	h.api = &fakeAPI{
		quotas: []corev1.ResourceQuota{},
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}, Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.1"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}},
		}},
		gpuNode: &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "node-0"},
			Status: v1alpha1.GPUNodeStatus{Driver: v1alpha1.GPUDriver{Version: "580.95.05"}}},
	}
	for _, id := range h.uuids() {
		h.api.gpuNode.Status.Devices = append(h.api.gpuNode.Status.Devices,
			v1alpha1.GPUDevice{UUID: id, Health: v1alpha1.DeviceHealth{State: "Healthy"}})
	}
	h.deps = doctor.Deps{
		Vendor:   nvidia.Traits(),
		HostRoot: h.root, DriverRoot: h.root, Proc: h.path("/proc"), Cgroup: h.path("/sys/fs/cgroup"),
		KubeletDir: h.path("/var/lib/kubelet"), CDIDirs: []string{h.path("/etc/cdi"), h.path("/var/run/cdi")},
		PluginDir: h.path("/var/lib/kubelet/device-plugins"), Agent: h.path(agentSocket), API: h.api,
	}
	return h
}

func spec(nodes, mount string) string {
	return fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "k8s.berth.dev/gpu", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [%s]}}],
 "containerEdits": {"mounts": [{"hostPath": %q, "containerPath": %q}]}}`, nodes, mount, mount)
}

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) write(name, text string) {
	h.t.Helper()
	h.must(os.MkdirAll(filepath.Dir(h.path(name)), 0o755))
	h.must(os.RemoveAll(h.path(name)))
	h.must(os.WriteFile(h.path(name), []byte(text), 0o644))
}

func (h *host) remove(name string) {
	h.t.Helper()
	h.must(os.RemoveAll(h.path(name)))
}

func (h *host) listen(name string) net.Listener {
	h.t.Helper()
	h.must(os.MkdirAll(filepath.Dir(h.path(name)), 0o755))
	listener, err := net.Listen("unix", h.path(name))
	h.must(err)
	h.t.Cleanup(func() { listener.Close() })
	return listener
}

// migDevice adds the driver's files of a MIG device of GPU 3.
func (h *host) migDevice() {
	var info unix.Stat_t
	h.must(unix.Stat(h.path("/dev/nvidia-caps/nvidia-cap1"), &info))
	for minor, name := range map[int]string{489: "access", 490: "ci0/access"} {
		h.write("/proc/driver/nvidia/capabilities/gpu3/mig/gi9/"+name,
			fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor))
		dev := unix.Mkdev(unix.Major(uint64(info.Rdev)), uint32(minor))
		h.must(unix.Mknod(h.path(fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)), unix.S_IFCHR|0o444, int(dev)))
	}
}

// noLinks returns a host with systemd and runc whose devices have no links; an empty version means unknown.
func (h *host) noLinks(runc string, systemd int) {
	h.t.Helper()
	h.remove("/dev/char")
	h.must(os.MkdirAll(h.path("/run/systemd/system"), 0o755))
	h.write(fmt.Sprintf("/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-%d.so", systemd), "")
	h.write("/usr/bin/runc", "")
	h.deps.RuncVersion = func(path string) (string, error) {
		if runc == "" {
			return "", errors.New("the program does not contain its version")
		}
		return runc, nil
	}
}

// linkDevices creates the links in /dev/char.
func (h *host) linkDevices() {
	h.must(os.MkdirAll(h.path("/dev/char"), 0o755))
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*"} {
		found, _ := filepath.Glob(h.path("/dev/" + pattern))
		for _, node := range found {
			info := unix.Stat_t{}
			h.must(unix.Stat(node, &info))
			if info.Mode&unix.S_IFMT != unix.S_IFCHR {
				continue
			}
			dev := uint64(info.Rdev)
			h.must(os.Symlink(node, h.path(fmt.Sprintf("/dev/char/%d:%d", unix.Major(dev), unix.Minor(dev)))))
		}
	}
}

func (h *host) uuids() []string {
	h.t.Helper()
	files, err := filepath.Glob(h.path("/proc/driver/nvidia/gpus/*/information"))
	h.must(err)
	var list []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		h.must(err)
		_, rest, _ := strings.Cut(string(text), "GPU UUID:")
		id, _, _ := strings.Cut(rest, "\n")
		list = append(list, strings.TrimSpace(id))
	}
	return list
}

// lines returns the findings that are not ok, without the paths of this test.
func (h *host) lines(d *v1alpha1.Doctor) []string {
	var out []string
	for _, f := range d.Findings {
		if f.Status != v1alpha1.DoctorOK {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s", f.Status, f.Code)))
		}
	}
	return out
}

func (h *host) run() *v1alpha1.Doctor {
	h.t.Helper()
	found := hostruntime.Find(hostruntime.Deps{HostRoot: h.root, Proc: h.path("/proc")})
	h.deps.Runtime, h.deps.RuntimeSocket = found.Runtime, found.Local(found.Runtime.Socket.Path)
	return doctor.Run(h.t.Context(), h.deps)
}

func TestHealthyNode(t *testing.T) {
	h := newHost(t)
	got := h.run()
	if got.Verdict != v1alpha1.DoctorHealthy || got.Node != "node-0" || len(got.NotChecked) > 0 {
		t.Errorf("verdict %s of %q, not checked %v; want Healthy of node-0, all checked:\n%v", got.Verdict, got.Node,
			got.NotChecked, h.lines(got))
	}
	var text strings.Builder
	for _, f := range got.Findings {
		fmt.Fprintf(&text, "%s: %s\n", f.Check, strings.ReplaceAll(f.Evidence, h.root, ""))
	}
	want := `driver: version 580.95.05, 4 GPUs (/proc/driver/nvidia/version)
libraries: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1, version 580.95.05
libraries: /usr/lib/x86_64-linux-gnu/libcuda.so.1, version 580.95.05
device nodes: 10 nodes below /dev, with the driver's numbers
/dev/char links: 10 nodes have one
GPU instances: 1 GPU instance, each with a compute instance
CDI specs: 1 spec with 1 device, every path exists
containerd: injects CDI devices (by default, /etc/containerd/config.toml)
kubelet: /var/lib/kubelet/device-plugins/kubelet.sock answers
kubelet: /var/lib/kubelet/pod-resources/kubelet.sock answers
cgroup: version 2 (/sys/fs/cgroup/cgroup.controllers)
agent: /run/berth/agent.sock: ready
GPUs: 4 GPUs without problems
kubelet version: v1.37.1
quotas: 0 ResourceQuotas, none with a name of the node's resources that is never counted
GPUNode: gpunodes/node-0 has the node's 4 GPUs
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// TestFaults injects one fault at a time.
func TestFaults(t *testing.T) {
	tests := map[string]struct {
		fault    func(h *host)
		want     []string
		evidence string // of the first finding that is not ok
	}{
		"no driver": {func(h *host) {
			h.remove("/proc/driver/nvidia")
			h.api.gpuNode.Status = v1alpha1.GPUNodeStatus{}
		}, []string{"problem DRIVER_NOT_LOADED"}, "/proc/driver/nvidia/version does not exist"},
		"the Windows Subsystem for Linux": {func(h *host) {
			h.remove("/proc/driver/nvidia")
			h.write("/dev/dxg", "")
			h.api.gpuNode.Status = v1alpha1.GPUNodeStatus{}
		}, []string{"problem PLATFORM_WSL"}, "/dev/dxg exists and "},
		"no version": {func(h *host) { h.write("/proc/driver/nvidia/version", "garbage") },
			[]string{"unknown", "problem GPUNODE_STALE"}, `contains no version: "garbage"`},
		"library missing": {func(h *host) { h.remove(lib + "/libcuda.so.1") },
			[]string{"problem DRIVER_LIBRARY_MISSING", "problem CDI_SPEC_PATH"}, "libcuda.so.1 is in none of the 15 usual folders"},
		"library of another version": {func(h *host) {
			h.write(lib+"/libnvidia-ml.so.550.1", "")
			h.remove(lib + "/libnvidia-ml.so.1")
			h.must(os.Symlink("libnvidia-ml.so.550.1", h.path(lib+"/libnvidia-ml.so.1")))
		}, []string{"problem DRIVER_LIBRARY_VERSION"}, "of version 550.1, the loaded kernel module of 580.95.05"},
		"node missing": {func(h *host) { h.remove("/dev/nvidia3"); h.remove("/dev/char/195:3") },
			[]string{"problem DEVICE_NODE_MISSING"}, "/dev/nvidia3"},
		"node of old numbers": {func(h *host) {
			h.remove("/dev/nvidia-uvm")
			h.must(unix.Mknod(h.path("/dev/nvidia-uvm"), unix.S_IFCHR|0o666, int(unix.Mkdev(12, 0))))
		}, []string{"problem DEVICE_NODE_WRONG"}, "/dev/nvidia-uvm is 12:0, the driver uses "},
		"file in place of a node": {func(h *host) { h.write("/dev/nvidia2", "") },
			[]string{"problem DEVICE_NODE_WRONG"}, "is not a character device; the driver uses 195:2"},
		"no links, old runc": {func(h *host) { h.noLinks("1.1.5", 255) },
			[]string{"problem DEV_CHAR_LINK_MISSING"}, "10 of 10 nodes have none"},
		"no links, old systemd": {func(h *host) { h.noLinks("1.3.0", 239) },
			[]string{"problem DEV_CHAR_LINK_MISSING"}, "systemd is of version 239"},
		"no links, not needed":    {func(h *host) { h.noLinks("1.1.12", 255) }, nil, ""},
		"no links, not yet":       {func(h *host) { h.noLinks("1.1.2", 255) }, nil, ""},
		"no links, runc unknown":  {func(h *host) { h.noLinks("", 255) }, nil, ""},
		"no links and no systemd": {func(h *host) { h.remove("/dev/char") }, nil, ""},
		"no links, without CDI": {func(h *host) {
			h.noLinks("1.3.0", 255)
			h.agent.Config.Config = &v1alpha1.AgentConfig{DeviceListStrategy: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}}
		}, []string{"problem DEV_CHAR_LINK_MISSING"}, "without CDI"},
		"NVIDIA's runtime is containerd's default": {func(h *host) {
			h.write(runConfig, "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'gpu'\n"+
				"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gpu.options]\n"+
				"BinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n")
		}, []string{"problem RUNTIME_NVIDIA_DEFAULT"}, "NVIDIA_VISIBLE_DEVICES=all in any image opens every GPU"},
		"NVIDIA's runtime is there and not the default": {func(h *host) {
			h.write(runConfig, "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n"+
				"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n"+
				"BinaryName = '/usr/bin/nvidia-container-runtime'\n")
		}, nil, ""},
		"NVIDIA's runtime heeds no variables": {func(h *host) {
			h.write(runConfig, "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n"+
				"[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'nvidia'\n")
			h.write("/etc/nvidia-container-runtime/config.toml", "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
		}, nil, ""},
		"NVIDIA's runtime is CRI-O's default": {func(h *host) {
			h.remove(runConfig)
			h.write("/etc/crio/crio.conf.d/99-nvidia.conf",
				"[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\n"+
					"runtime_path = \"/usr/bin/nvidia-container-runtime\"\n")
		}, []string{"problem RUNTIME_NVIDIA_DEFAULT"}, "99-nvidia.conf is nvidia"},
		"half a MIG device": {func(h *host) {
			h.remove("/proc/driver/nvidia/capabilities/gpu3/mig/gi9/ci0")
		}, []string{"problem GPU_INSTANCE_EMPTY"}, "gpu3/mig/gi9"},
		"MPS of a GPU that is gone": {func(h *host) { h.write("/run/berth/mps/GPU-gone/pipe/control", "") },
			[]string{"problem MPS_LEFTOVER"}, "/run/berth/mps/GPU-gone: no GPU"},
		"spec missing": {func(h *host) { h.remove(specFile) }, []string{"problem CDI_SPEC_MISSING"}, "no file of kind k8s.berth.dev/gpu"},
		"spec is torn": {func(h *host) { h.write(specFile, `{"cdiVersion":`) },
			[]string{"problem CDI_SPEC_INVALID", "problem CDI_SPEC_MISSING"}, "parse CDI spec"},
		"spec is stale": {func(h *host) {
			h.write(specFile, spec(`{"path": "/dev/nvidia99"}`,
				lib+"/libcuda.so.550"))
		}, []string{"problem CDI_SPEC_PATH"}, "names 2 of 2 files that do not exist: " +
			"/dev/nvidia99, /usr/lib"},
		"spec of old numbers": {func(h *host) {
			h.write(specFile, spec(`{"path": "/dev/nvidia0", "major": 235, "minor": 0}`, lib+"/libcuda.so.1"))
		}, []string{"problem CDI_SPEC_NUMBERS"}, "/dev/nvidia0 is 195:0, the spec says 235:0"},
		"device in two specs": {func(h *host) {
			text, err := os.ReadFile(h.path(specFile))
			h.must(err)
			h.write("/var/run/cdi/other.json", string(text))
		}, []string{"problem CDI_DEVICE_TWICE"}, "both have k8s.berth.dev/gpu=0"},
		"two directories are no clash": {func(h *host) {
			text, err := os.ReadFile(h.path(specFile))
			h.must(err)
			h.write("/etc/cdi/other.json", string(text))
		}, nil, ""},
		"containerd: off": {func(h *host) {
			h.write(runConfig, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n")
		}, []string{"problem RUNTIME_CDI_OFF"}, "enable_cdi is false"},
		"containerd: off, in a file that is imported": {func(h *host) {
			h.write(runConfig, "version = 2\nimports = ['conf.d/*.toml']\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n")
			h.write("/etc/containerd/conf.d/99.toml", "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n")
		}, []string{"problem RUNTIME_CDI_OFF"}, "config.toml, /etc/containerd/conf.d/99.toml"},
		"containerd: a pipe in place of an import": {func(h *host) {
			h.write(runConfig, "version = 3\nimports = ['/etc/containerd/*.d/*']\n")
			h.must(os.MkdirAll(h.path("/etc/containerd/conf.d"), 0o755))
			h.must(unix.Mkfifo(h.path("/etc/containerd/conf.d/pipe"), 0o600))
		}, []string{"problem RUNTIME_CONFIG_INVALID"}, "conf.d/pipe: not a regular file"},
		"containerd: other directories": {func(h *host) {
			h.write(runConfig, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/etc/cdi']\n")
		}, []string{"problem RUNTIME_CDI_DIRS"}, "Berth's spec is in /var/run/cdi; cdi_spec_dirs in " +
			"/etc/containerd/config.toml are /etc/cdi"},
		"containerd: /run is /var/run": {func(h *host) {
			h.write(runConfig, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/run/cdi/']\n")
		}, nil, ""},
		"containerd: no sense": {func(h *host) { h.write(runConfig, "version = = 3") },
			[]string{"problem RUNTIME_CONFIG_INVALID"}, "/etc/containerd/config.toml: (1, "},
		"containerd: version 2, old": {func(h *host) { h.write(runConfig, "version = 2\n"); h.containerd("1.7.22") },
			[]string{"problem RUNTIME_CDI_OFF"}, "containerd 1.7.22 does not inject"},
		"containerd: version 2, new": {func(h *host) { h.write(runConfig, "version = 2\n"); h.containerd("v2.4.2") }, nil, ""},
		"containerd: version 2, unasked": {func(h *host) { h.write(runConfig, "version = 2\n") },
			[]string{"unknown"}, "the version of containerd is unknown"},
		"CRI-O: other directories": {func(h *host) {
			h.remove(runConfig)
			h.write("/etc/crio/crio.conf.d/10.conf", "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']\n")
		}, []string{"problem RUNTIME_CDI_DIRS"}, "are /opt/cdi"},
		"no kubelet": {func(h *host) { h.remove("/var/lib/kubelet") }, []string{"problem KUBELET_DIR_MISSING"},
			"device-plugins does not exist"},
		"the kubelet has another directory": {func(h *host) {
			h.must(os.MkdirAll(h.path("/var/lib/other"), 0o755))
			h.deps.KubeletRuns = true
			h.agent.Config.Config = &v1alpha1.AgentConfig{KubeletDir: "/var/lib/other", DeviceListStrategy: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}}
		}, []string{"problem KUBELET_DIR_DIFFERS"}, "the agent is set to /var/lib/other"},
		"the agent's kubelet runs": {func(h *host) {
			h.deps.KubeletRuns = true
			h.agent.Config.Config = &v1alpha1.AgentConfig{KubeletDir: "/var/lib/kubelet", DeviceListStrategy: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}}
		}, nil, ""},
		"kubelet stopped": {func(h *host) {
			h.plugin.(*net.UnixListener).SetUnlinkOnClose(false)
			h.plugin.Close()
		}, []string{"problem KUBELET_SOCKET_DOWN"}, "kubelet.sock: connection refused"},
		"no PodResources": {func(h *host) { h.remove("/var/lib/kubelet/pod-resources") },
			[]string{"problem KUBELET_SOCKET_DOWN"}, "no such file"},
		"kubelet is old": {func(h *host) { h.api.node.Status.NodeInfo.KubeletVersion = "v1.28.3" },
			[]string{"problem KUBELET_OLD"}, "kubelet v1.28.3"},
		"cgroup v1": {func(h *host) { h.remove("/sys/fs/cgroup/cgroup.controllers") },
			[]string{"problem CGROUP_V1"}, "does not exist"},
		"no agent": {func(h *host) { h.deps.Agent, h.deps.Node = h.path("/run/berth/none.sock"), "node-0" },
			[]string{"problem AGENT_UNREACHABLE"},
			"/run/berth/none.sock does not exist: no berth-agent runs on this node"},
		"agent waits": {func(h *host) { h.agent.Ready = "the first scan is not finished" },
			[]string{"problem AGENT_NOT_READY"}, "the first scan is not finished"},
		"agent complains": {func(h *host) {
			h.agent.Problems = []gpu.Cause{{Code: "CONFIG_REFUSED", Message: "line 3"}}
		}, []string{"problem CONFIG_REFUSED"}, "line 3"},
		"a GPU is lost": {func(h *host) {
			h.agent.Inventory.GPUs[2] = gpu.GPU{Index: 2, UUID: "GPU-x",
				Health: gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "XID79", Message: "off"}}}}
		}, []string{"problem XID79"}, "GPU 2 (GPU-x): off"},
		"a MIG device has a fault": {func(h *host) {
			h.agent.Inventory.GPUs[3].MIG.Devices = []gpu.MIGDevice{{Partition: gpu.Partition{Index: 1, UUID: "MIG-x",
				Health: gpu.Health{Causes: []gpu.Cause{{Code: "XID94", Message: "contained"}}}}}}
		}, []string{"problem XID94"}, "MIG device 0:1 (MIG-x): contained"},
		"no GPUNode": {func(h *host) { h.api.gpuNode = nil }, []string{"problem GPUNODE_MISSING"}, "not found"},
		"GPUNode of other GPUs": {func(h *host) { h.api.gpuNode.Status.Devices = h.api.gpuNode.Status.Devices[1:] },
			[]string{"problem GPUNODE_STALE"}, "the driver lists GPU-"},
		"GPUNode with a GPU of another vendor": {func(h *host) {
			h.agent.Inventory.GPUs = append(h.agent.Inventory.GPUs, gpu.GPU{UUID: "EX-0", Vendor: "example"})
			h.api.gpuNode.Status.Devices = append(h.api.gpuNode.Status.Devices, v1alpha1.GPUDevice{UUID: "EX-0"})
		}, nil, "has the node's 4 GPUs"},
		"GPUNode of another driver": {func(h *host) { h.api.gpuNode.Status.Driver.Version = "550.1" },
			[]string{"problem GPUNODE_STALE"}, "has driver 550.1, the node 580.95.05"},
		"API does not answer": {func(h *host) { h.api.err = errors.New("timeout") }, []string{"unknown"}, "timeout"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			tc.fault(h)
			got := h.run()
			if diff := cmp.Diff(tc.want, h.lines(got)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			for _, f := range got.Findings {
				if f.Status != v1alpha1.DoctorOK {
					if !strings.Contains(f.Evidence, tc.evidence) {
						t.Errorf("evidence %q, want %q in it", f.Evidence, tc.evidence)
					}
					break
				}
			}
			want := v1alpha1.DoctorHealthy
			switch {
			case slices.Equal(tc.want, []string{"problem CGROUP_V1"}):
				// Informational findings do not make a node unhealthy.
			case strings.Contains(fmt.Sprint(tc.want), "problem"):
				want = v1alpha1.DoctorProblems
			case len(tc.want) > 0:
				want = v1alpha1.DoctorUnknown
			}
			if got.Verdict != want {
				t.Errorf("verdict %s, want %s", got.Verdict, want)
			}
		})
	}
}

// containerd serves the version API of a containerd's CRI.
func (h *host) containerd(version string) {
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != "/runtime.v1.RuntimeService/Version" {
			return errors.New("unknown method " + method)
		}
		answer := &emptypb.Empty{}
		answer.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), version))
		return stream.SendMsg(answer)
	}))
	listener := h.listen("/run/containerd/containerd.sock")
	go func() { _ = server.Serve(listener) }()
	h.t.Cleanup(server.Stop)
}

// TestWhatDoesNotApply checks that checks that do not apply are listed and are not problems.
func TestWhatDoesNotApply(t *testing.T) {
	h := newHost(t)
	h.remove("/dev/char")
	h.remove(specFile)
	h.remove(runConfig)
	h.agent.Config.Config = &v1alpha1.AgentConfig{DeviceListStrategy: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}}
	h.deps.Simulated, h.deps.API, h.deps.NoAPI = true, nil, "there is no kubeconfig"
	got := h.run()
	if got.Verdict != v1alpha1.DoctorHealthy {
		t.Errorf("verdict %s: %v", got.Verdict, h.lines(got))
	}
	var checks []string
	for _, one := range got.NotChecked {
		checks = append(checks, one.Check)
	}
	if diff := cmp.Diff([]string{"/dev/char links", "CDI spec of Berth", "container runtime", "GPUNode"}, checks); diff != "" {
		t.Errorf("not checked (-want +got):\n%s", diff)
	}
}

// TestInfoIsNoTrouble checks that a finding of severity info does not make a node unhealthy.
func TestInfoIsNoTrouble(t *testing.T) {
	h := newHost(t)
	h.agent.Problems = []gpu.Cause{{Code: "RULE_UNUSED", Message: "rule 1"}}
	if got := h.run(); got.Verdict != v1alpha1.DoctorHealthy || len(h.lines(got)) != 1 {
		t.Errorf("verdict %s, findings %v; want Healthy with one finding", got.Verdict, h.lines(got))
	}
}
