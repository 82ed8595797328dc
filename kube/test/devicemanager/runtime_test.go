package devicemanager

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// gpuNode matches the device nodes of GPUs.
var gpuNode = regexp.MustCompile(`^/dev/nvidia[0-9]+$`)

// runtime simulates the container runtime: a container is a process in its own cgroups, and a bundle with its OCI spec
// where containerd keeps it.
type runtime struct {
	t testing.TB
	// root is the kubelet's cgroupRoot, cgroups its folder.
	root    string
	cgroups string
	bundles string
	// cdi has the CDI specs.
	cdi *cdi.Cache
}

// newRuntime creates the cgroups of all pods. The state folder replaces /run/containerd; cdiDir has the CDI specs.
func newRuntime(t testing.TB, state, cdiDir string) *runtime {
	t.Helper()
	devices, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(cdiDir))
	if err != nil {
		t.Fatal(err)
	}
	r := &runtime{
		t: t, root: fmt.Sprintf("berth-devicemanager-%d-%x", os.Getpid(), rand.Uint32()),
		bundles: filepath.Join(state, "io.containerd.runtime.v2.task", "k8s.io"), cdi: devices,
	}
	if err := os.MkdirAll(r.bundles, 0o700); err != nil {
		t.Fatal(err)
	}
	// With version 1 the kubelet's readers use one hierarchy, the one that limits devices. Each further hierarchy would
	// cost a migration, which takes the kernel milliseconds.
	hierarchy := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.controllers")); err != nil {
		hierarchy = filepath.Join(hierarchy, "devices")
	}
	r.cgroups = filepath.Join(hierarchy, r.root)
	if err := os.MkdirAll(filepath.Join(r.cgroups, "kubepods"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, path := range []string{"kubepods", ""} {
			r.removeCgroup(path)
		}
	})
	return r
}

func (r *runtime) makeCgroup(below string) {
	if err := os.Mkdir(filepath.Join(r.cgroups, below), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		r.t.Error(err)
	}
}

// removeCgroup waits for the kernel, for which a cgroup stays busy for a moment after its last process has ended.
func (r *runtime) removeCgroup(below string) {
	path, deadline := filepath.Join(r.cgroups, below), time.Now().Add(10*time.Second)
	for {
		err := syscall.Rmdir(path)
		if err == nil || errors.Is(err, syscall.ENOENT) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Errorf("remove cgroup %s: %v", path, err)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func podCgroup(uid types.UID) string { return filepath.Join("kubepods", "pod"+string(uid)) }

func (r *runtime) makePod(uid types.UID)   { r.makeCgroup(podCgroup(uid)) }
func (r *runtime) removePod(uid types.UID) { r.removeCgroup(podCgroup(uid)) }

// container is a container that was started.
type container struct {
	runtime *runtime
	id      string
	pod     types.UID
	name    string
	process *exec.Cmd
	// forgotten means that the kubelet has lost its memory since the start.
	forgotten bool
	// nodes are the device nodes of GPUs in the container, by the names that it sees.
	nodes []string
}

// start starts a container with the device plugins' answers and the CDI devices of its claims.
func (r *runtime) start(pod *v1.Pod, name string, options *devicemanager.DeviceRunContainerOptions, injected []string) (*container, error) {
	var raw [32]byte
	for i := range raw {
		raw[i] = byte(rand.Uint32())
	}
	c := &container{runtime: r, id: hex.EncodeToString(raw[:]), pod: pod.UID, name: name}
	if err := c.writeBundle(pod, options, injected); err != nil {
		return nil, err
	}
	r.makeCgroup(c.cgroup())
	c.process = exec.Command("sleep", "1000")
	if err := c.process.Start(); err != nil {
		return nil, err
	}
	procs := filepath.Join(r.cgroups, c.cgroup(), "cgroup.procs")
	return c, os.WriteFile(procs, []byte(strconv.Itoa(c.process.Process.Pid)), 0)
}

func (c *container) cgroup() string { return filepath.Join(podCgroup(c.pod), c.id) }

func (c *container) writeBundle(pod *v1.Pod, options *devicemanager.DeviceRunContainerOptions, injected []string) error {
	spec := specs.Spec{
		Version: specs.Version, Process: &specs.Process{}, Linux: &specs.Linux{},
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type":    "container",
			"io.kubernetes.cri.container-name":    c.name,
			"io.kubernetes.cri.sandbox-name":      pod.Name,
			"io.kubernetes.cri.sandbox-namespace": pod.Namespace,
			"io.kubernetes.cri.sandbox-uid":       string(pod.UID),
		},
	}
	if options != nil {
		for _, env := range options.Envs {
			spec.Process.Env = append(spec.Process.Env, env.Name+"="+env.Value)
		}
		for _, mount := range options.Mounts {
			how := "rw"
			if mount.ReadOnly {
				how = "ro"
			}
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: mount.ContainerPath, Source: mount.HostPath,
				Type: "bind", Options: []string{"rbind", how}})
		}
		for _, device := range options.Devices {
			var stat syscall.Stat_t
			if err := syscall.Stat(device.PathOnHost, &stat); err != nil {
				return fmt.Errorf("find device node %s: %w", device.PathOnHost, err)
			}
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
				Path: device.PathInContainer, Type: "c", Major: int64(stat.Rdev >> 8 & 0xfff),
				Minor: int64(stat.Rdev&0xff | stat.Rdev>>12&0xfff00),
			})
		}
		for _, device := range options.CDIDevices {
			injected = append(slices.Clip(injected), device.Name)
		}
	}
	if len(injected) > 0 {
		if err := c.runtime.cdi.Refresh(); err != nil {
			return fmt.Errorf("read the CDI specs: %w", err)
		}
		if _, err := c.runtime.cdi.InjectDevices(&spec, injected...); err != nil {
			return err
		}
	}
	for _, device := range spec.Linux.Devices {
		if gpuNode.MatchString(device.Path) {
			c.nodes = append(c.nodes, device.Path)
		}
	}
	blob, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	dir := filepath.Join(c.runtime.bundles, c.id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), blob, 0o600)
}

// stop kills the container's process and returns when it was reaped.
func (c *container) stop() {
	c.process.Process.Kill()
	c.process.Wait()
}

// remove removes what is left of a stopped container.
func (c *container) remove() {
	c.runtime.removeCgroup(c.cgroup())
	if err := os.RemoveAll(filepath.Join(c.runtime.bundles, c.id)); err != nil {
		c.runtime.t.Error(err)
	}
}
