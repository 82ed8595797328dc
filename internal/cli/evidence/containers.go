package evidence

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	maxOCISpec   = 8 << 20
	maxMountinfo = 4 << 20
	maxDevNodes  = 4096
)

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// containers reads each running container twice: its OCI spec, and a process in it.
func (c *collector) containers() {
	proc := c.places.Proc
	if proc == "" {
		c.unread(trace.Process, proc, "no /proc is configured")
		return
	}
	reader := kubelet.NewContainers(kubelet.ContainersDeps{ProcRoot: proc, CgroupRoot: c.places.CgroupRoot, Bundles: func() []kubelet.Bundle { return c.places.Bundles }, Vendors: c.local.Vendors})
	living, err := reader.Live()
	if err != nil {
		c.unread(trace.Process, proc, why(err))
		return
	}
	c.read(trace.Source{Kind: trace.Process, Path: proc})
	for i := range living {
		if living[i].Sandbox {
			continue
		}
		pids, err := reader.PIDs(&living[i])
		if err != nil {
			c.unread(trace.Process, living[i].Cgroup, why(err))
		}
		if len(pids) > 0 { // otherwise the container has ended
			c.container(&living[i], pids)
		}
	}
}

func (c *collector) container(container *kubelet.Container, pids []int) {
	ref := trace.Ref{UID: container.PodUID, Namespace: container.Namespace, Name: container.Pod}
	name := container.Name
	if name == "" {
		name = c.nameByMount(pids[0])
	}
	for _, pid := range pids {
		c.local.Processes = append(c.local.Processes, trace.ProcessFact{
			Source: trace.Source{Kind: trace.Process, Path: filepath.Join(c.places.Proc, strconv.Itoa(pid), "cgroup")},
			PID:    pid, ContainerID: container.ID, PodUID: container.PodUID,
		})
	}
	if name == "" {
		return // its processes still identify the pod
	}
	if container.Spec == "" {
		c.unread(trace.OCISpec, container.ID, "pod "+ref.String()+", container "+name+": "+container.SpecError)
	} else {
		c.local.Pods = append(c.local.Pods, trace.PodFact{Source: trace.Source{Kind: trace.OCISpec, Path: container.Spec}, Ref: ref})
		c.local.Containers = append(c.local.Containers, specFact(c.local.Vendors, container, ref, name, pids))
	}
	c.local.Containers = append(c.local.Containers, c.processFact(container, ref, name, pids))
}

// specFact returns the content of the OCI spec. The reader provides the variables; only a trace needs the mounts and
// whether the container is privileged.
func specFact(vendors trace.Vendors, container *kubelet.Container, ref trace.Ref, name string, pids []int) trace.ContainerFact {
	fact := trace.ContainerFact{
		Source: trace.Source{Kind: trace.OCISpec, Path: container.Spec}, ID: container.ID, Pod: ref, Container: name,
		State: trace.StateRunning, PIDs: pids, Env: variables(container.Env),
	}
	for _, device := range container.Devices {
		node := trace.Node{Path: device.Path, Major: int64(device.Major), Minor: int64(device.Minor)}
		if vendors.RelevantNode(node) {
			fact.Nodes = append(fact.Nodes, node)
		}
	}
	fact.Mounts, fact.Privileged = specDetails(vendors, container.Spec)
	return fact
}

// specDetails reads the mounts that concern GPUs, and whether the device cgroup allows every device, which is the
// effect of privileged.
func specDetails(vendors trace.Vendors, path string) (mounts []trace.Mount, privileged bool) {
	blob, err := readFile(path, maxOCISpec)
	if err != nil {
		return nil, false
	}
	var spec struct {
		Mounts []struct {
			Destination string `json:"destination"`
			Source      string `json:"source"`
		} `json:"mounts"`
		Linux struct {
			Resources struct {
				Devices []struct {
					Allow  bool   `json:"allow"`
					Type   string `json:"type"`
					Major  *int64 `json:"major"`
					Minor  *int64 `json:"minor"`
					Access string `json:"access"`
				} `json:"devices"`
			} `json:"resources"`
		} `json:"linux"`
	}
	if json.Unmarshal(blob, &spec) != nil {
		return nil, false
	}
	for _, mount := range spec.Mounts {
		mounts = append(mounts, trace.Mount{HostPath: mount.Source, Path: mount.Destination})
	}
	mounts = vendors.RelevantMounts(mounts)
	for _, rule := range spec.Linux.Resources.Devices {
		if (rule.Type == "" || rule.Type == "a") && rule.Major == nil && rule.Minor == nil && (rule.Access == "" || rule.Access == "rwm") {
			privileged = rule.Allow // the last such rule decides
		}
	}
	return mounts, privileged
}

// processFact reads the container's first process: the environment that it was started with, and the device nodes in
// its own /dev.
func (c *collector) processFact(container *kubelet.Container, ref trace.Ref, name string, pids []int) trace.ContainerFact {
	pid := pids[0]
	path := filepath.Join(c.places.Proc, strconv.Itoa(pid))
	fact := trace.ContainerFact{
		Source: trace.Source{Kind: trace.Process, Path: path}, ID: container.ID, Pod: ref, Container: name,
		State: trace.StateRunning, PIDs: pids,
	}
	env, err := kubelet.Environment(c.places.Proc, pid)
	if err != nil {
		fact.NoEnv = true
		c.unread(trace.Process, filepath.Join(path, "environ"), why(err))
	}
	for _, variable := range variables(env) {
		if c.local.Vendors.RelevantEnv(variable.Name) {
			fact.Env = append(fact.Env, variable)
		}
	}
	if fact.Nodes, err = deviceNodes(c.local.Vendors, filepath.Join(path, "root")); err != nil {
		fact.NoNodes = true
		c.unread(trace.Process, filepath.Join(path, "root", "dev"), why(err))
	}
	if container.Spec != "" {
		_, fact.Privileged = specDetails(c.local.Vendors, container.Spec)
	}
	return fact
}

// deviceNodes lists the GPU nodes in a container's /dev. The tree belongs to the container, so no link is followed out
// of its root.
func deviceNodes(vendors trace.Vendors, rootPath string) ([]trace.Node, error) {
	root, err := os.OpenRoot(rootPath)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var nodes []trace.Node
	dirs := []string{"dev"}
	for _, vendor := range vendors {
		for _, folder := range vendor.NodeFolders {
			dirs = append(dirs, "dev/"+folder)
		}
	}
	for _, dir := range append(dirs, "dev/dri") {
		found, err := nodesIn(vendors, root, dir)
		if err != nil && dir == "dev" {
			return nil, err
		}
		nodes = append(nodes, found...)
	}
	return nodes, nil
}

func nodesIn(vendors trace.Vendors, root *os.Root, dir string) ([]trace.Node, error) {
	opened, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	entries, err := opened.Readdirnames(maxDevNodes)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var nodes []trace.Node
	for _, name := range entries {
		info, err := root.Lstat(dir + "/" + name)
		if err != nil || info.Mode()&os.ModeCharDevice == 0 {
			continue
		}
		major, minor, ok := numbers(info)
		node := trace.Node{Path: "/" + dir + "/" + name, Major: major, Minor: minor}
		if ok && vendors.RelevantNode(node) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// nameByMount finds a container's name if its OCI spec cannot be read: the kubelet mounts a file of
// .../pods/UID/containers/NAME/ on /dev/termination-log.
func (c *collector) nameByMount(pid int) string {
	file, err := os.Open(filepath.Join(c.places.Proc, strconv.Itoa(pid), "mountinfo"))
	if err != nil {
		return ""
	}
	defer file.Close()
	logs, err := mountinfo.GetMountsFromReader(io.LimitReader(file, maxMountinfo), mountinfo.PrefixFilter("/dev/termination-log"))
	if err != nil {
		return ""
	}
	for _, log := range logs {
		_, rest, ok := strings.Cut(log.Root, "/containers/")
		if name, _, is := strings.Cut(rest, "/"); ok && is {
			return name
		}
	}
	return ""
}

func readFile(path string, limit int64) ([]byte, error) {
	file, err := os.OpenInRoot(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit))
}

// numbers returns the major and minor number of a device node.
func numbers(info fs.FileInfo) (major, minor int64, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev)), true
}
