package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	// maxNested bounds the cgroups that are read below one container. A container with more counts as running, because
	// only the container itself can have created them.
	maxNested = 500
	// maxPIDs bounds the text of one cgroup.procs.
	maxPIDs = 4 << 20
	// searchEvery is the number of listings after which the kubelet's cgroups are searched again although they are
	// known, because another kubelet may have started.
	searchEvery = 16
)

// PodCgroup is the cgroup of a pod. The kubelet removes it after the last process has ended.
type PodCgroup struct {
	UID        string
	Path       string
	Containers []ContainerCgroup
}

// ContainerCgroup is the cgroup of a container, or of the pod's sandbox.
type ContainerCgroup struct {
	ID   string
	Path string
	// Populated is true while a thread runs in the cgroup or below it. Such a thread holds a device, even if the
	// process's first thread has ended; a zombie does not.
	Populated bool
}

// Cgroups lists pods and containers and whether they run, from the kernel's cgroups: from cgroup.events in version 2,
// and in version 1 from cgroup.procs of the cgroup and all below it, in the hierarchy that limits devices. The kernel
// maintains both, so that a process that forks and ends all the time is not missed, and the cost does not depend on
// processes outside of pods.
//
// It must run in the machine's PID namespace: version 1 does not show processes of other namespaces. Its methods may be
// called concurrently, wait only for the kernel, and read a bounded number of cgroups.
type Cgroups struct {
	procRoot, cgroupRoot string

	mu    sync.Mutex
	roots []kubepods
	looks int
}

// NewCgroups returns a reader without reading anything. It finds the mounts in procRoot/self/mountinfo. Without a
// cgroupRoot it includes the pods of every kubelet of the machine.
func NewCgroups(procRoot, cgroupRoot string) *Cgroups {
	return &Cgroups{procRoot: procRoot, cgroupRoot: cgroupRoot}
}

// Pods lists all pods that have a cgroup, by UID, with their containers by ID.
func (c *Cgroups) Pods() ([]PodCgroup, error) {
	var pods []PodCgroup
	err := c.each(true, func(root kubepods, uid, path string) error {
		pod, there, err := root.pod(uid, path)
		if err != nil {
			return fmt.Errorf("read cgroup of pod %s: %w", uid, err)
		}
		if there {
			pods = append(pods, pod)
		}
		return nil
	})
	slices.SortFunc(pods, func(a, b PodCgroup) int { return strings.Compare(a.UID+a.Path, b.UID+b.Path) })
	return pods, err
}

// UIDs returns the pods that have a cgroup, sorted. It does not read their containers, nor search the kubelet's cgroups again while they
// are known: a call of the kubelet may wait for it.
func (c *Cgroups) UIDs() ([]string, error) {
	var uids []string
	err := c.each(false, func(_ kubepods, uid, _ string) error {
		uids = append(uids, uid)
		return nil
	})
	slices.Sort(uids)
	return slices.Compact(uids), err
}

// each calls visit for the cgroup of each pod; see known.
func (c *Cgroups) each(all bool, visit func(root kubepods, uid, path string) error) error {
	roots, err := c.known(all)
	if err != nil {
		return err
	}
	for _, root := range roots {
		parents, err := root.parents()
		if err != nil {
			return fmt.Errorf("list cgroups of pods: %w", err)
		}
		for _, parent := range parents {
			names, err := namesIn(parent)
			if err != nil {
				return fmt.Errorf("list cgroups of pods: %w", err)
			}
			for _, name := range names {
				uid, ok := podOf(name)
				if !ok {
					continue
				}
				if err := visit(root, uid, filepath.Join(parent, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Pod reads the cgroup of one pod, at a cost that does not depend on the others. The second
// result is false when the pod has none: it was not started yet, or it has ended.
func (c *Cgroups) Pod(uid string) (PodCgroup, bool, error) {
	roots, err := c.known(false)
	if err != nil {
		return PodCgroup{}, false, err
	}
	for _, root := range roots {
		for _, path := range root.pathsOf(uid) {
			pod, there, err := root.pod(uid, path)
			if err != nil {
				return PodCgroup{}, false, fmt.Errorf("read cgroup of pod %s: %w", uid, err)
			}
			if there {
				return pod, true, nil
			}
		}
	}
	return PodCgroup{}, false, nil
}

// PIDs returns the processes in the cgroup at path and below it, sorted, as numbered in this PID namespace. It includes
// a process whose first thread has ended while another thread runs.
func (c *Cgroups) PIDs(path string) ([]int, error) {
	var pids []int
	_, err := eachBelow(path, func(dir string) (bool, error) {
		blob, err := readCgroup(dir, "cgroup.procs", maxPIDs)
		for field := range bytes.FieldsSeq(blob) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return true, err
	})
	slices.Sort(pids)
	return slices.Compact(pids), err
}

// known returns the kubelet's cgroups. They are searched for when none is known, when one was removed and, when the containers
// of all pods are listed, from time to time.
func (c *Cgroups) known(all bool) ([]kubepods, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	search := len(c.roots) == 0 || all && c.looks%searchEvery == 0
	for _, root := range c.roots {
		if _, err := os.Lstat(root.dir); err != nil {
			search = true
		}
	}
	if all {
		c.looks++
	}
	if search {
		roots, err := findKubepods(c.procRoot, c.cgroupRoot)
		if err != nil {
			return nil, err
		}
		c.roots = roots
	}
	return c.roots, nil
}

// parents are the cgroups that have those of pods: one for each quality of service.
func (k kubepods) parents() ([]string, error) {
	names, err := childCgroups(k.dir)
	if err != nil {
		return nil, err
	}
	parents := []string{k.dir}
	for _, name := range names {
		if name == k.child("burstable") || name == k.child("besteffort") {
			parents = append(parents, filepath.Join(k.dir, name))
		}
	}
	return parents, nil
}

// child is the name of a cgroup directly below kubepods, as the kubelet's driver writes it.
func (k kubepods) child(name string) string {
	if slice, ok := strings.CutSuffix(filepath.Base(k.dir), ".slice"); ok {
		return slice + "-" + name + ".slice"
	}
	return name
}

// pathsOf are the places where the cgroup of a pod can be.
func (k kubepods) pathsOf(uid string) []string {
	slice, systemd := strings.CutSuffix(filepath.Base(k.dir), ".slice")
	if !systemd {
		name := "pod" + uid
		return []string{filepath.Join(k.dir, name), filepath.Join(k.dir, "burstable", name), filepath.Join(k.dir, "besteffort", name)}
	}
	name := "pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	paths := []string{filepath.Join(k.dir, slice+"-"+name)}
	for _, class := range []string{"burstable", "besteffort"} {
		paths = append(paths, filepath.Join(k.dir, k.child(class), slice+"-"+class+"-"+name))
	}
	return paths
}

// pod reads the cgroup at path; there is none when it was removed.
func (k kubepods) pod(uid, path string) (PodCgroup, bool, error) {
	if _, err := os.Lstat(path); err != nil {
		if isRemoved(err) {
			err = nil
		}
		return PodCgroup{}, false, err
	}
	pod := PodCgroup{UID: uid, Path: path}
	names, err := namesIn(path)
	if err != nil {
		return PodCgroup{}, false, err
	}
	for _, name := range names { // files have no names that could be a container's
		id, ok := containerOf(name)
		if !ok {
			continue
		}
		container := ContainerCgroup{ID: id, Path: filepath.Join(path, name)}
		if container.Populated, err = k.populated(container.Path); err != nil {
			return PodCgroup{}, false, err
		}
		pod.Containers = append(pod.Containers, container)
	}
	slices.SortFunc(pod.Containers, func(a, b ContainerCgroup) int { return strings.Compare(a.ID, b.ID) })
	return pod, true, nil
}

// populated reports whether a thread runs in a cgroup or below it.
func (k kubepods) populated(path string) (bool, error) {
	if k.v2 {
		blob, err := readCgroup(path, "cgroup.events", 4<<10)
		for line := range bytes.Lines(blob) {
			if value, ok := bytes.CutPrefix(line, []byte("populated ")); ok {
				return !bytes.HasPrefix(value, []byte("0")), nil
			}
		}
		if err == nil && len(blob) > 0 {
			err = fmt.Errorf("%s: no line \"populated\"", filepath.Join(path, "cgroup.events"))
		}
		return false, err
	}
	found := false
	whole, err := eachBelow(path, func(dir string) (bool, error) {
		// The kernel generates the list when the file is opened and read.
		blob, err := readCgroup(dir, "cgroup.procs", 32)
		found = found || len(bytes.TrimSpace(blob)) > 0
		return !found, err
	})
	return found || !whole, err
}

// eachBelow calls visit for a cgroup and all below it until it returns false. The result is
// false when there are more than maxNested, of which the rest was left out.
func eachBelow(path string, visit func(dir string) (bool, error)) (whole bool, err error) {
	todo := []string{path}
	for seen := 0; len(todo) > 0; seen++ {
		if seen == maxNested {
			return false, nil
		}
		dir := todo[0]
		todo = todo[1:]
		if more, err := visit(dir); err != nil || !more {
			return true, err
		}
		names, err := childCgroups(dir)
		if err != nil {
			return true, err
		}
		for _, name := range names {
			todo = append(todo, filepath.Join(dir, name))
		}
	}
	return true, nil
}

// readCgroup reads a file of a cgroup; the text is empty when the cgroup was removed, and in version 2 where the cgroup
// has threads but no processes of its own.
func readCgroup(dir, name string, limit int64) ([]byte, error) {
	// os.Open would register these files with the runtime's poller, which takes longer than reading them.
	fd, err := openCgroup(filepath.Join(dir, name))
	if err != nil {
		if isRemoved(err) {
			return nil, nil
		}
		return nil, &os.PathError{Op: "open", Path: filepath.Join(dir, name), Err: err}
	}
	defer syscall.Close(fd)
	blob := make([]byte, 0, 64)
	for int64(len(blob)) < limit {
		if len(blob) == cap(blob) {
			blob = slices.Grow(blob, len(blob))
		}
		n, err := syscall.Read(fd, blob[len(blob):min(int64(cap(blob)), limit)])
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil && n > 0:
			blob = blob[:len(blob)+n]
		case err == nil, isRemoved(err), errors.Is(err, syscall.EOPNOTSUPP):
			return blob, nil
		default:
			return nil, &os.PathError{Op: "read", Path: filepath.Join(dir, name), Err: err}
		}
	}
	return blob, nil
}

func openCgroup(path string) (int, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if !errors.Is(err, syscall.EINTR) {
			return fd, err
		}
	}
}
