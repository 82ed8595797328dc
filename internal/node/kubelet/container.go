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

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxSpec bounds an OCI spec in bytes; a large one has about 100 KiB.
const maxSpec = 8 << 20

// Container is a container of a pod in which at least one thread runs.
//
// The container runtime wrote the OCI spec before the container started, and the container cannot change it. Of the
// spec, the pod's author controls the environment, and those annotations that are not the runtime's own (see Keys).
type Container struct {
	ID     string
	PodUID string
	// Namespace, Pod and Name are empty when the spec was not found, or when the
	// runtime does not write them into it (docker).
	Namespace string
	Pod       string
	Name      string
	// Sandbox is true for the pod's own (pause) container.
	Sandbox bool
	// Spec is the path of the OCI spec; it is empty when SpecError says why it could not be read.
	Spec      string
	SpecError string
	// Devices are the spec's device nodes, by path; HostPath is empty.
	Devices []gpu.DeviceNode
	// Grants are the IDs of the grants among the spec's mounts, sorted.
	Grants []string
	// Env holds those of the spec's variables that are about GPUs: NVIDIA_*,
	// CUDA_VISIBLE_DEVICES, CUDA_MPS_*, BERTH_*.
	Env map[string]string
	// Cgroup is the path of the container's cgroup, for Containers.PIDs.
	Cgroup string
}

// Bundle is where a runtime keeps its containers' OCI specs, Dir/<id>/File, and by which annotations it says what they are.
type Bundle struct {
	Dir  string
	File string
	Keys Keys
}

// Keys are the annotations by which a runtime says in an OCI spec what its containers are. CRI-O copies a pod's own annotations there too,
// and containerd those that pod_annotations of its configuration lists, so the keys of one runtime are worth nothing in the specs of
// another.
type Keys struct {
	Namespace string
	Pod       string
	Container string
	// Kind is the annotation that has the value Sandbox in the pod's own container.
	Kind    string
	Sandbox string
}

// containerdKeys are those of containerd, which sets them after those of the pod (containerd 2.2, internal/cri/annotations).
func containerdKeys() Keys {
	const prefix = "io.kubernetes.cri."
	return Keys{Namespace: prefix + "sandbox-namespace", Pod: prefix + "sandbox-name", Container: prefix + "container-name", Kind: prefix + "container-type", Sandbox: "sandbox"}
}

// crioKeys are the kubelet's labels, which CRI-O sets after the annotations of the pod (CRI-O 1.37, internal/factory/container and
// server/sandbox_run_linux.go). Its io.kubernetes.cri-o.ContainerType is not among them: in a sandbox, an annotation of the pod replaces
// it.
func crioKeys() Keys {
	const prefix = "io.kubernetes."
	return Keys{Namespace: prefix + "pod.namespace", Pod: prefix + "pod.name", Container: prefix + "container.name", Kind: prefix + "container.name", Sandbox: "POD"}
}

// TaskBundle is where a containerd with that state directory keeps the OCI specs of pods' containers.
func TaskBundle(stateDir string) Bundle {
	return Bundle{Dir: filepath.Join(stateDir, "io.containerd.runtime.v2.task", "k8s.io"), File: "config.json", Keys: containerdKeys()}
}

// CRIOBundle is where a CRI-O with that run root keeps the OCI specs with a storage driver such as overlay.
func CRIOBundle(runRoot, driver string) Bundle {
	return Bundle{Dir: filepath.Join(runRoot, driver+"-containers"), File: filepath.Join("userdata", "config.json"), Keys: crioKeys()}
}

// DefaultBundles are the places of containerd, of docker on containerd, and of CRI-O,
// beneath the folder that holds the host's /run.
func DefaultBundles(run string) []Bundle {
	pods := TaskBundle(filepath.Join(run, "containerd"))
	return []Bundle{
		pods, {Dir: filepath.Join(filepath.Dir(pods.Dir), "moby"), File: pods.File},
		CRIOBundle(filepath.Join(run, "containers", "storage"), "overlay"),
	}
}

// ContainersDeps are the sources of Containers.
type ContainersDeps struct {
	// ProcRoot is the host's /proc, where the mounts of the cgroups are found. This process
	// must be in the host's PID namespace.
	ProcRoot string
	// CgroupRoot is the kubelet's cgroupRoot; empty accepts any.
	CgroupRoot string
	// Bundles returns where the OCI specs can be now, and reads nothing; nil if the specs are not needed.
	Bundles func() []Bundle
	// GrantsDir is the host's directory of grants (see GrantID); if empty, no grants are found.
	GrantsDir string
	// Vendors are the vendors whose environment variables a Container has; those of Berth are always included.
	Vendors []gpu.Traits
}

// Containers finds the running containers of a node: those in whose cgroup a thread runs (see cgroupReader). It caches their
// specs, which never change. It may be used concurrently.
type Containers struct {
	deps    ContainersDeps
	cgroups *cgroupReader

	mu    sync.Mutex
	known map[string]Container // by ID; those whose spec was read
}

// NewContainers returns a reader without reading anything.
func NewContainers(deps ContainersDeps) *Containers {
	if deps.Bundles == nil {
		deps.Bundles = func() []Bundle { return nil }
	}
	return &Containers{deps: deps, cgroups: newCgroups(deps.ProcRoot, deps.CgroupRoot), known: map[string]Container{}}
}

// Live lists the containers in which a thread runs, sorted by pod UID and ID. A spec that cannot be read is reported in
// Container.SpecError, not as an error of Live.
func (c *Containers) Live() ([]Container, error) {
	pods, err := c.cgroups.pods()
	if err != nil {
		return nil, err
	}
	living := map[string]bool{}
	var result []Container
	for _, pod := range pods {
		for _, container := range c.living(pod) {
			living[container.ID] = true
			result = append(result, container)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.known {
		if !living[id] {
			delete(c.known, id)
		}
	}
	return result, nil
}

// LiveIn is Live for one pod; its cost does not depend on other pods.
func (c *Containers) LiveIn(podUID string) ([]Container, error) {
	living, _, err := c.InPod(podUID)
	return living, err
}

// InPod is LiveIn and reports whether the pod has a cgroup.
func (c *Containers) InPod(podUID string) (living []Container, there bool, err error) {
	pod, there, err := c.cgroups.pod(podUID)
	if err != nil || !there {
		return nil, false, err
	}
	return c.living(pod), true, nil
}

// PodUIDs are the pods that have a cgroup: a pod that had one and has none any more has ended.
func (c *Containers) PodUIDs() ([]string, error) { return c.cgroups.uids() }

// PIDs returns the processes of a running container.
func (c *Containers) PIDs(container *Container) ([]int, error) {
	return c.cgroups.pids(container.Cgroup)
}

// living returns the running containers of a pod, with their specs.
func (c *Containers) living(pod cgroupOfPod) []Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	var result []Container
	for _, cgroup := range pod.Containers {
		if !cgroup.Populated {
			continue
		}
		container, ok := c.known[cgroup.ID]
		if !ok {
			container = c.describe(cgroup.ID)
			if container.Spec != "" {
				c.known[cgroup.ID] = container
			}
		}
		container.PodUID, container.Cgroup = pod.UID, cgroup.Path
		result = append(result, container)
	}
	return result
}

func (c *Containers) describe(id string) Container {
	result := Container{ID: id, SpecError: "no runtime has its bundle"}
	for _, bundle := range c.deps.Bundles() {
		// The ID is part of a cgroup's name and was checked to be hexadecimal.
		blob, err := readInRoot(bundle.Dir, filepath.Join(id, bundle.File), maxSpec)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		path := filepath.Join(bundle.Dir, id, bundle.File)
		if err == nil {
			err = result.readSpec(blob, bundle.Keys, c.deps)
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
	Mounts      []struct {
		Source string `json:"source"`
	} `json:"mounts"`
	Linux struct {
		Devices []specs.LinuxDevice `json:"devices"`
	} `json:"linux"`
}

func (c *Container) readSpec(blob []byte, keys Keys, deps ContainersDeps) error {
	var spec ociSpec
	if err := json.Unmarshal(blob, &spec); err != nil {
		return err
	}
	value := func(key string) string {
		if key == "" { // A runtime that writes none, as docker.
			return ""
		}
		return spec.Annotations[key]
	}
	c.Namespace, c.Pod, c.Name = value(keys.Namespace), value(keys.Pod), value(keys.Container)
	c.Sandbox = keys.Kind != "" && value(keys.Kind) == keys.Sandbox
	c.Devices = nil
	for _, device := range spec.Linux.Devices {
		// A negative or huge number is invalid and not a device of this node.
		if device.Type == "c" && device.Major >= 0 && device.Minor >= 0 && device.Major <= 1<<31 && device.Minor <= 1<<31 {
			c.Devices = append(c.Devices, gpu.DeviceNode{Path: device.Path, Major: uint32(device.Major), Minor: uint32(device.Minor)})
		}
	}
	slices.SortStableFunc(c.Devices, func(a, b gpu.DeviceNode) int { return strings.Compare(a.Path, b.Path) })
	c.Grants = nil
	for _, mount := range spec.Mounts {
		if id, ok := GrantID(mount.Source, deps.GrantsDir); ok && deps.GrantsDir != "" {
			c.Grants = append(c.Grants, id)
		}
	}
	slices.Sort(c.Grants)
	c.Env = map[string]string{}
	for name, value := range parseEnvironment(spec.Process.Env) {
		if strings.HasPrefix(name, "BERTH_") || slices.ContainsFunc(deps.Vendors, func(t gpu.Traits) bool { return t.Assigns(name) }) {
			c.Env[name] = value
		}
	}
	return nil
}
