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

// cgroupOfPod is the cgroup of a pod. The kubelet removes it after the last process has ended.
type cgroupOfPod struct {
	UID string
	// Path is empty when the kubelet has removed the pod's cgroup and containers apart from it are left.
	Path       string
	Containers []cgroupOfContainer
}

// cgroupOfContainer is the cgroup of a container, or of the pod's sandbox.
type cgroupOfContainer struct {
	ID   string
	Path string
	// Populated is true while a thread runs in the cgroup or below it. Such a thread holds a device, even if the
	// process's first thread has ended; a zombie does not.
	Populated bool
}

// cgroupReader lists pods and containers and whether they run, from the kernel's cgroups: from cgroup.events in version 2,
// and in version 1 from cgroup.procs of the cgroup and all below it, in the hierarchy that limits devices. The kernel
// maintains both, so that a process that forks and ends all the time is not missed, and the cost does not depend on
// processes outside of pods.
//
// A container whose cgroup is apart from its pod's (see joined) belongs to the pod that its name has.
//
// It must run in the machine's PID namespace: version 1 does not show processes of other namespaces. Its methods may be
// called concurrently, wait only for the kernel, and read a bounded number of cgroups.
type cgroupReader struct {
	procRoot   string
	cgroupRoot string

	mu     sync.Mutex
	places places
	looks  int
}

// newCgroups returns a reader without reading anything. It finds the mounts in procRoot/self/mountinfo. Without a
// cgroupRoot it includes the pods of every kubelet of the machine.
func newCgroups(procRoot, cgroupRoot string) *cgroupReader {
	return &cgroupReader{procRoot: procRoot, cgroupRoot: cgroupRoot}
}

// pods lists all pods that have a cgroup, by UID, with their containers by ID.
func (c *cgroupReader) pods() ([]cgroupOfPod, error) {
	known, err := c.known(true)
	if err != nil {
		return nil, err
	}
	pods, err := known.all()
	if err == nil && known.incomplete(pods) {
		if known, err = c.search(); err == nil {
			pods, err = known.addApart(pods, "")
		}
	}
	slices.SortFunc(pods, func(a, b cgroupOfPod) int { return strings.Compare(a.UID+a.Path, b.UID+b.Path) })
	return pods, err
}

// uids returns the pods that have a cgroup, sorted. It does not read their containers, nor search the kubelet's cgroups again while they
// are known: a call of the kubelet may wait for it.
func (c *cgroupReader) uids() ([]string, error) {
	known, err := c.known(false)
	if err != nil {
		return nil, err
	}
	var uids []string
	err = known.each(func(_ kubepods, uid, _ string) error {
		uids = append(uids, uid)
		return nil
	})
	if err == nil {
		err = known.eachApart(func(_ apart, uid, _, _ string) error {
			uids = append(uids, uid)
			return nil
		})
	}
	slices.Sort(uids)
	return slices.Compact(uids), err
}

// pod reads the cgroup of one pod, at a cost that does not depend on the others, except for the names of containers apart from their pods.
// The second result is false when the pod has none: it was not started yet, or it has ended.
func (c *cgroupReader) pod(uid string) (cgroupOfPod, bool, error) {
	known, err := c.known(false)
	if err != nil {
		return cgroupOfPod{}, false, err
	}
	pods, err := known.pod(uid)
	if err == nil && known.incomplete(pods) {
		if known, err = c.search(); err == nil {
			pods, err = known.addApart(pods, uid)
		}
	}
	if err != nil || len(pods) == 0 {
		return cgroupOfPod{}, false, err
	}
	return pods[0], true, nil
}

// pids returns the processes in the cgroup at path and below it, sorted, as numbered in this PID namespace. It includes
// a process whose first thread has ended while another thread runs.
func (c *cgroupReader) pids(path string) ([]int, error) {
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

// known returns where pods and containers are. It is searched for when it is not known, when a cgroup was removed and, when the containers
// of all pods are listed, from time to time.
func (c *cgroupReader) known(all bool) (places, error) {
	c.mu.Lock()
	known := c.places
	search := len(known.pods) == 0 || all && c.looks%searchEvery == 0 || known.removed()
	if all {
		c.looks++
	}
	c.mu.Unlock()
	if search {
		return c.search()
	}
	return known, nil
}

// search finds where pods and containers are.
func (c *cgroupReader) search() (places, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := findPlaces(c.procRoot, c.cgroupRoot)
	if err != nil {
		return places{}, err
	}
	c.places = found.keep(c.places)
	return c.places, nil
}

// populated reports whether a thread runs in a cgroup or below it.
func populated(path string, v2 bool) (bool, error) {
	if v2 {
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
