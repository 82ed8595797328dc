package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// places are the cgroups of one hierarchy that have those of pods and of containers.
type places struct {
	pods  []kubepods
	apart []apart
}

// kubepods is the cgroup that a kubelet creates for all its pods.
type kubepods struct {
	dir string
	v2  bool
}

// apart is a cgroup with those of containers that are not in their pods' cgroups; see joined. Only the container runtime makes cgroups in
// it: the containers' own are below.
type apart struct {
	dir        string
	cgroupRoot string
	v2         bool
}

// systemd reports whether a kubelet has the systemd driver.
func (p places) systemd() bool {
	return slices.ContainsFunc(p.pods, func(k kubepods) bool { return strings.HasSuffix(k.dir, ".slice") })
}

// removed reports whether one of the cgroups is no longer there.
func (p places) removed() bool {
	return slices.ContainsFunc(p.pods, func(k kubepods) bool { return !isThere(k.dir) }) ||
		slices.ContainsFunc(p.apart, func(a apart) bool { return !isThere(a.dir) })
}

// keep adds those places of containers that were known before and are still there: they may have no container now.
func (p places) keep(before places) places {
	for _, place := range before.apart {
		if !slices.Contains(p.apart, place) && isThere(place.dir) {
			p.apart = append(p.apart, place)
		}
	}
	return p
}

func isThere(dir string) bool {
	_, err := os.Lstat(dir)
	return err == nil
}

// each calls visit for the cgroup of each pod.
func (p places) each(visit func(root kubepods, uid, path string) error) error {
	for _, root := range p.pods {
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

// eachApart calls visit for each container apart from its pod.
func (p places) eachApart(visit func(place apart, podUID, id, path string) error) error {
	for _, place := range p.apart {
		names, err := namesIn(place.dir)
		if err != nil {
			return fmt.Errorf("list cgroups of containers: %w", err)
		}
		for _, name := range names {
			podUID, id, ok := place.container(name)
			if !ok {
				continue
			}
			if err := visit(place, podUID, id, filepath.Join(place.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// all reads the cgroups of all pods.
func (p places) all() ([]cgroupOfPod, error) {
	var pods []cgroupOfPod
	err := p.each(func(root kubepods, uid, path string) error {
		pod, there, err := root.pod(uid, path)
		if err != nil {
			return fmt.Errorf("read cgroup of pod %s: %w", uid, err)
		}
		if there {
			pods = append(pods, pod)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p.addApart(pods, "")
}

// pod reads the cgroups of one pod; the list is empty when it has none.
func (p places) pod(uid string) ([]cgroupOfPod, error) {
	for _, root := range p.pods {
		for _, path := range root.pathsOf(uid) {
			pod, there, err := root.pod(uid, path)
			if err != nil {
				return nil, fmt.Errorf("read cgroup of pod %s: %w", uid, err)
			}
			if there {
				return p.addApart([]cgroupOfPod{pod}, uid)
			}
		}
	}
	return p.addApart(nil, uid)
}

// incomplete reports whether a pod's containers can be apart from it in a place that is not known yet: a pod without a container was not
// started yet, or it is of a kubelet with the systemd driver and a runtime with cgroupfs.
func (p places) incomplete(pods []cgroupOfPod) bool {
	return len(p.apart) == 0 && p.systemd() && slices.ContainsFunc(pods, func(pod cgroupOfPod) bool { return len(pod.Containers) == 0 })
}

// addApart adds the containers apart from their pods to those; with a UID only the containers of that pod.
func (p places) addApart(pods []cgroupOfPod, uid string) ([]cgroupOfPod, error) {
	if len(p.apart) == 0 {
		return pods, nil
	}
	at := map[string]int{}
	for i := range pods {
		at[pods[i].UID] = i
	}
	err := p.eachApart(func(place apart, podUID, id, path string) error {
		if uid != "" && podUID != uid {
			return nil
		}
		container := cgroupOfContainer{ID: id, Path: path}
		var err error
		if container.Populated, err = populated(path, place.v2); err != nil {
			return fmt.Errorf("read cgroup of container %s: %w", id, err)
		}
		i, ok := at[podUID]
		if !ok {
			i = len(pods)
			pods, at[podUID] = append(pods, cgroupOfPod{UID: podUID}), i
		}
		pods[i].Containers = append(pods[i].Containers, container)
		return nil
	})
	for i := range pods {
		pods[i].sort()
	}
	return pods, err
}

// container returns the pod and the ID of the container that has a cgroup of that name; ok is false for other cgroups, and for containers
// of another kubelet than that of cgroupRoot.
func (a apart) container(name string) (podUID, id string, ok bool) {
	slice, podUID, id, ok := joined(name)
	if ok {
		_, ok = beneath(sliceParts(slice), a.cgroupRoot)
	}
	return podUID, id, ok
}

func (p *cgroupOfPod) sort() {
	slices.SortFunc(p.Containers, func(a, b cgroupOfContainer) int { return strings.Compare(a.ID, b.ID) })
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
func (k kubepods) pod(uid, path string) (cgroupOfPod, bool, error) {
	if _, err := os.Lstat(path); err != nil {
		if isRemoved(err) {
			err = nil
		}
		return cgroupOfPod{}, false, err
	}
	pod := cgroupOfPod{UID: uid, Path: path}
	names, err := namesIn(path)
	if err != nil {
		return cgroupOfPod{}, false, err
	}
	for _, name := range names { // files have no names that could be a container's
		id, ok := containerOf(name)
		if !ok {
			continue
		}
		container := cgroupOfContainer{ID: id, Path: filepath.Join(path, name)}
		if container.Populated, err = populated(container.Path, k.v2); err != nil {
			return cgroupOfPod{}, false, err
		}
		pod.Containers = append(pod.Containers, container)
	}
	pod.sort()
	return pod, true, nil
}
