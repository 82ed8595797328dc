package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/gpu"
)

// maxSpec bounds an OCI spec in bytes; a large one has about 100 KiB.
const maxSpec = 8 << 20

// Container is a container of a pod in which at least one process lives.
//
// What comes from the OCI spec was written by the container runtime before the
// container started: the container cannot change it. What of it the pod's author
// can choose is the environment only.
type Container struct {
	ID     string
	PodUID string
	// Namespace, Pod and Name are empty when the spec was not found, or when the
	// runtime does not write them into it (docker).
	Namespace, Pod, Name string
	// Sandbox is true for the pod's own (pause) container.
	Sandbox bool
	// Spec is where the OCI spec was read; empty when SpecError says why it was not.
	Spec      string
	SpecError string
	// Devices are the spec's device nodes, by path; HostPath is empty.
	Devices []gpu.DeviceNode
	// Env holds those of the spec's variables that are about GPUs: NVIDIA_*,
	// CUDA_VISIBLE_DEVICES, CUDA_MPS_*, BERTH_*.
	Env map[string]string
	// Processes are ordered by PID; there is at least one, and none is a zombie.
	Processes []Process
}

// Bundle is where a runtime keeps its containers' OCI specs: Dir/<id>/File.
type Bundle struct{ Dir, File string }

// DefaultBundles are the places of containerd, of docker on containerd, and of CRI-O,
// beneath the folder that holds the host's /run.
func DefaultBundles(run string) []Bundle {
	tasks := filepath.Join(run, "containerd", "io.containerd.runtime.v2.task")
	return []Bundle{
		{Dir: filepath.Join(tasks, "k8s.io"), File: "config.json"},
		{Dir: filepath.Join(tasks, "moby"), File: "config.json"},
		{Dir: filepath.Join(run, "containers", "storage", "overlay-containers"), File: filepath.Join("userdata", "config.json")},
	}
}

// ContainersDeps are what Containers reads from.
type ContainersDeps struct {
	// ProcRoot is the host's /proc. Its processes must be those of the host's PID
	// namespace.
	ProcRoot string
	// CgroupRoot is the kubelet's cgroupRoot; empty accepts any.
	CgroupRoot string
	Bundles    []Bundle
}

// Containers finds the living containers of a node. It remembers their specs,
// which never change. It may be used by several goroutines.
type Containers struct {
	deps ContainersDeps

	mu    sync.Mutex
	known map[string]Container // by ID; those whose spec was read
}

// NewContainers makes a reader; nothing is read yet.
func NewContainers(deps ContainersDeps) *Containers {
	return &Containers{deps: deps, known: map[string]Container{}}
}

// Live lists the containers in which a process lives, by pod UID and ID. A spec
// that cannot be read is no error of Live: see Container.SpecError.
func (c *Containers) Live() ([]Container, error) {
	processes, err := processesBelow(c.deps.ProcRoot, c.deps.CgroupRoot)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	living := map[string][]Process{}
	for _, process := range processes {
		if !process.Dead {
			living[process.ContainerID] = append(living[process.ContainerID], process)
		}
	}
	result := make([]Container, 0, len(living))
	for id, members := range living {
		container, ok := c.known[id]
		if !ok {
			container = c.describe(id)
			if container.Spec != "" {
				c.known[id] = container
			}
		}
		container.PodUID, container.Processes = members[0].PodUID, members
		result = append(result, container)
	}
	for id := range c.known {
		if _, lives := living[id]; !lives {
			delete(c.known, id)
		}
	}
	slices.SortFunc(result, func(a, b Container) int {
		if d := strings.Compare(a.PodUID, b.PodUID); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
	return result, nil
}

func (c *Containers) describe(id string) Container {
	result := Container{ID: id, SpecError: "no runtime has its bundle"}
	for _, bundle := range c.deps.Bundles {
		// The ID comes out of a cgroup's name and was checked to be hexadecimal.
		blob, err := readInRoot(bundle.Dir, filepath.Join(id, bundle.File), maxSpec)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		path := filepath.Join(bundle.Dir, id, bundle.File)
		if err == nil {
			err = result.readSpec(blob)
		}
		if err != nil {
			result.SpecError = fmt.Sprintf("read OCI spec %s: %v", path, err)
			return result
		}
		result.Spec, result.SpecError = path, ""
		return result
	}
	return result
}

// ociSpec are the parts of an OCI runtime spec that matter here.
type ociSpec struct {
	Process struct {
		Env []string `json:"env"`
	} `json:"process"`
	Annotations map[string]string `json:"annotations"`
	Linux       struct {
		Devices []specs.LinuxDevice `json:"devices"`
	} `json:"linux"`
}

func (c *Container) readSpec(blob []byte) error {
	var spec ociSpec
	if err := json.Unmarshal(blob, &spec); err != nil {
		return err
	}
	first := func(names ...string) string {
		for _, name := range names {
			if value := spec.Annotations[name]; value != "" {
				return value
			}
		}
		return ""
	}
	// containerd's name first, then CRI-O's.
	c.Namespace = first("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
	c.Pod = first("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
	c.Name = first("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
	c.Sandbox = first("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType") == "sandbox"
	c.Devices = nil
	for _, device := range spec.Linux.Devices {
		// A negative or huge number is nonsense, and no device of ours.
		if device.Type == "c" && device.Major >= 0 && device.Minor >= 0 && device.Major <= 1<<31 && device.Minor <= 1<<31 {
			c.Devices = append(c.Devices, gpu.DeviceNode{Path: device.Path, Major: uint32(device.Major), Minor: uint32(device.Minor)})
		}
	}
	slices.SortStableFunc(c.Devices, func(a, b gpu.DeviceNode) int { return strings.Compare(a.Path, b.Path) })
	c.Env = map[string]string{}
	for name, value := range parseEnvironment(spec.Process.Env) {
		if strings.HasPrefix(name, "NVIDIA_") || strings.HasPrefix(name, "BERTH_") || strings.HasPrefix(name, "CUDA_MPS_") || name == "CUDA_VISIBLE_DEVICES" {
			c.Env[name] = value
		}
	}
	return nil
}
