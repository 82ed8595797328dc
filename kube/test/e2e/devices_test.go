package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

func TestCapacity(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	r.waitNodeStatus(t, nodeGPUs, nodeGPUs)
}

// TestGPUsOfAContainer checks that a pod that requests two GPUs has the two that the kubelet chose and no other, with
// every device list strategy. Without NVIDIA's container runtime, envvar and volume-mounts name the GPUs but create no
// device nodes.
func TestGPUsOfAContainer(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	// This pod has the first GPU, so that the first two cannot be right by chance.
	r.run(t, podWithGPUs("neighbour", 1))
	for title, test := range map[string]struct {
		config string // configuration of the agent; empty: as the sandbox starts it
		nodes  bool   // the container has the device nodes
		driver bool   // the container has the driver's files
		// visible returns the expected value of NVIDIA_VISIBLE_DEVICES.
		visible func(uuids []string) string
		// mounted returns the expected mount points that name the GPUs.
		mounted func(uuids []string) []string
	}{
		// NVIDIA's runtime, where it is the default, must add nothing to the CDI devices.
		"cdi-cri":                 {"", true, true, always("void"), nil},
		"cdi-annotations":         {"deviceListStrategy: [cdi-annotations]", true, true, always("void"), nil},
		"envvar":                  {"deviceListStrategy: [envvar]", false, false, byComma, nil},
		"envvar and device specs": {"deviceListStrategy: [envvar]\npassDeviceSpecs: true", true, false, byComma, nil},
		"envvar by index and specs": {"deviceListStrategy: [envvar]\ndeviceIDStrategy: index\npassDeviceSpecs: true",
			true, false, nil, nil},
		"volume-mounts": {"deviceListStrategy: [volume-mounts]", false, false,
			always("/var/run/nvidia-container-devices"), func(uuids []string) []string {
				return []string{"/var/run/nvidia-container-devices/" + uuids[0], "/var/run/nvidia-container-devices/" + uuids[1]}
			}},
	} {
		t.Run(title, func(t *testing.T) {
			if test.config != "" {
				r.withAgent(t, configured(agentConfig(t, test.config)))
			}
			pod := r.run(t, podWithGPUs("two", 2))[0]
			uuids := r.assignment(t, pod).uuids
			if len(uuids) != 2 {
				t.Fatalf("the kubelet allocated %v, want 2 GPUs", uuids)
			}
			var gpus []uint32
			if test.nodes {
				gpus = minorsOf(t, hardware(t, r.node.SimDir()), uuids)
			}
			r.checkNodes(t, pod, gpus)
			r.checkDriver(t, pod, test.driver)
			if test.visible != nil {
				if got, want := r.envIn(t, pod)["NVIDIA_VISIBLE_DEVICES"], test.visible(uuids); !sameList(got, want) {
					t.Errorf("NVIDIA_VISIBLE_DEVICES=%s, want %s", got, want)
				}
			}
			points := r.mountsIn(t, pod)
			if test.mounted != nil {
				for _, point := range test.mounted(uuids) {
					if !slices.Contains(points, point) {
						t.Errorf("%s is no mount point in the container", point)
					}
				}
			}
		})
	}
}

func always(text string) func([]string) string { return func([]string) string { return text } }

func byComma(uuids []string) string { return strings.Join(uuids, ",") }

// sameList compares two comma-separated lists, ignoring the order.
func sameList(a, b string) bool {
	return slices.Equal(slices.Sorted(strings.SplitSeq(a, ",")), slices.Sorted(strings.SplitSeq(b, ",")))
}

// configured returns the options of an agent that follows this file.
func configured(file string) sandbox.AgentOptions {
	return sandbox.AgentOptions{Args: []string{"--config=" + file}, Dirs: []string{filepath.Dir(file)}}
}

// agentConfig writes a file for berth-agent --config.
func agentConfig(t testing.TB, settings string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	text := "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\n" + settings + "\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkNodes checks which NVIDIA device nodes a container has, and what the kernel allows: opening its own fails only
// because there is no driver (ENXIO); opening a node of another GPU that the container made itself is forbidden
// (EPERM).
func (r *rig) checkNodes(t testing.TB, pod *corev1.Pod, gpus []uint32) {
	t.Helper()
	if got := r.gpusIn(t, pod, "main"); !slices.Equal(got, gpus) {
		t.Errorf("the container has the nodes of GPUs %v, want %v", got, gpus)
	}
	own := []string{}
	if len(gpus) > 0 {
		own = append(own, "/dev/nvidiactl", "/dev/nvidia-uvm")
	}
	for _, minor := range gpus {
		own = append(own, fmt.Sprintf("/dev/nvidia%d", minor))
	}
	for _, path := range own {
		if got := execIn(t, r.Cluster, pod, "open", path); got != "ENXIO" {
			t.Errorf("open %s: %s, want ENXIO: allowed, and without hardware", path, got)
		}
	}
	machine := hardware(t, r.node.SimDir())
	for _, gpuInfo := range machine.GPUs {
		if slices.Contains(gpus, uint32(gpuInfo.Minor)) {
			continue
		}
		path := fmt.Sprintf("/tmp/gpu%d-%d", gpuInfo.Minor, time.Now().UnixNano()) // A pod may be checked twice.
		execIn(t, r.Cluster, pod, "mknod", path, strconv.Itoa(int(machine.Majors.NVIDIA)), strconv.Itoa(gpuInfo.Minor))
		if got := execIn(t, r.Cluster, pod, "open", path); got != "EPERM" {
			t.Errorf("open a node made for GPU %d, which the pod does not hold: %s, want EPERM", gpuInfo.Minor, got)
		}
	}
}

// checkDriver checks whether a container has the driver's files, that is libraries, tools and firmware, with the same
// content as on the host.
func (r *rig) checkDriver(t testing.TB, pod *corev1.Pod, want bool) {
	t.Helper()
	version := hardware(t, r.node.SimDir()).Driver
	points := r.mountsIn(t, pod)
	const libraries = "/usr/lib/x86_64-linux-gnu/"
	for _, path := range []string{
		libraries + "libcuda.so." + version, libraries + "libnvidia-ml.so." + version,
		libraries + "libnvidia-ptxjitcompiler.so." + version, "/usr/bin/nvidia-smi",
	} {
		if got := slices.Contains(points, path); got != want {
			t.Errorf("%s is a mount point in the container: %v, want %v", path, got, want)
		}
	}
	if !want {
		return
	}
	if !slices.ContainsFunc(points, func(p string) bool { return strings.Contains(p, "firmware/nvidia/"+version+"/gsp") }) {
		t.Errorf("no firmware of driver %s is mounted; the mount points are %q", version, points)
	}
	// The CDI hook creates the names that programs are linked against.
	for _, link := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		host, err := os.ReadFile(filepath.Join(r.node.SimDir(), "root", libraries, strings.TrimSuffix(link, "1")+version))
		if err != nil {
			t.Fatal(err)
		}
		if got := execIn(t, r.Cluster, pod, "cat", libraries+link); got != strings.TrimSpace(string(host)) {
			t.Errorf("%s in the container has %d bytes, want %d as the host's library has", link, len(got), len(host))
		}
	}
}
