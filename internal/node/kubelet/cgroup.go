package kubelet

import (
	"slices"
	"strings"
)

// Owner is the pod and container that a cgroup path names.
type Owner struct {
	// PodUID has dashes, as in the API; static pods have 32 hexadecimal digits.
	PodUID string
	// ContainerID is the runtime's, without a prefix.
	ContainerID string
	// CgroupPath is the path in which both were found.
	CgroupPath string
}

// ParseCgroup returns the container in the text of /proc/PID/cgroup, and whether there is one.
//
// It supports cgroup v1, v2 and hybrid hierarchies, the cgroupfs and systemd drivers, and the names of containerd,
// CRI-O and docker:
//
//	/kubepods/burstable/pod<uid>/<id>
//	/kubepods.slice/kubepods-pod<uid with _>.slice/cri-containerd-<id>.scope
//	/system.slice/kubepods-pod<uid with _>.slice:cri-containerd:<id>
//
// The last one is of a kubelet with the systemd driver and a runtime with cgroupfs; see joined.
//
// The kubelet may have its own cgroupRoot: if one is given, paths outside of it belong to no container, so that pods of
// another kubelet of the machine are ignored. Without it, any prefix is accepted, including that of another cgroup
// namespace ("/../.."). For pods within pods the result is the outermost. CRI-O's monitor (crio-conmon-<id>.scope) is
// not part of the container.
func ParseCgroup(text, cgroupRoot string) (Owner, bool) {
	best, rank := Owner{}, 0
	for line := range strings.Lines(text) {
		owner, r := parseCgroupLine(strings.TrimRight(line, "\n"), cgroupRoot)
		if r > rank {
			best, rank = owner, r
		}
	}
	return best, rank > 0
}

// parseCgroupLine reads "hierarchy:controllers:path". The rank is 0 when the line names no container; otherwise lines
// of a higher rank take precedence. A process is in one container only, but a program may have moved it within single
// v1 hierarchies, least likely in those with a controller that limits devices.
func parseCgroupLine(line, cgroupRoot string) (Owner, int) {
	hierarchy, rest, ok := strings.Cut(line, ":")
	if !ok {
		return Owner{}, 0
	}
	controllers, path, ok := strings.Cut(rest, ":")
	if !ok || !strings.HasPrefix(path, "/") {
		return Owner{}, 0
	}
	owner, ok := parseCgroupPath(path, cgroupRoot)
	if !ok {
		return Owner{}, 0
	}
	switch names := strings.Split(controllers, ","); {
	case slices.Contains(names, "devices"):
		return owner, 4
	case hierarchy == "0":
		return owner, 3
	case slices.Contains(names, "memory"), slices.Contains(names, "pids"):
		return owner, 2
	}
	return owner, 1
}

func parseCgroupPath(path, cgroupRoot string) (Owner, bool) {
	below, ok := beneath(partsOf(path), cgroupRoot)
	if !ok {
		return Owner{}, false
	}
	for i := 0; i+1 < len(below); i++ {
		uid, ok := podOf(below[i])
		if !ok {
			continue
		}
		id, ok := containerOf(below[i+1])
		if !ok {
			return Owner{}, false
		}
		return Owner{PodUID: uid, ContainerID: id, CgroupPath: path}, true
	}
	return Owner{}, false
}

// partsOf splits a path. A joined name is replaced by the path that the systemd driver makes of it.
func partsOf(path string) []string {
	var parts []string
	for part := range strings.FieldsFuncSeq(path, isSlash) {
		slice, _, id, ok := joined(part)
		if !ok {
			parts = append(parts, part)
			continue
		}
		parts = append(append(parts, sliceParts(slice)...), id)
	}
	return parts
}

func isSlash(r rune) bool { return r == '/' }

// joined splits the name that a container's cgroup has when the kubelet has the systemd driver and the container runtime has cgroupfs, as
// with kubeadm and a containerd without SystemdCgroup: kubepods-burstable-pod<uid with _>.slice:cri-containerd:<id>. The runtime gives runc
// these three texts for systemd, and runc takes them for one path. That path is relative: to the cgroup of runc in version 1, such as
// /system.slice/containerd.service, and to the one above it in version 2. The pod's own cgroup then has no container.
func joined(name string) (slice, podUID, id string, ok bool) {
	slice, rest, _ := strings.Cut(name, ":")
	runtime, id, _ := strings.Cut(rest, ":")
	if !slices.Contains(runtimes(), runtime) || !isContainerID(id) {
		return "", "", "", false
	}
	if !strings.HasSuffix(slice, ".slice") {
		return "", "", "", false
	}
	podUID, ok = podOf(slice)
	return slice, podUID, id, ok
}

// sliceParts returns the path of a slice: systemd reads "-" in its name as a level.
func sliceParts(slice string) []string {
	var parts []string
	for i := range slice {
		if slice[i] == '-' {
			parts = append(parts, slice[:i]+".slice")
		}
	}
	return append(parts, slice)
}

// beneath cuts off everything up to the kubelet's cgroupRoot. With the systemd
// driver the root /a/b has the name a.slice/a-b.slice.
func beneath(parts []string, cgroupRoot string) ([]string, bool) {
	root := strings.FieldsFunc(cgroupRoot, isSlash)
	if len(root) == 0 {
		return parts, true
	}
	for i := 0; i+len(root) <= len(parts); i++ {
		if slices.Equal(parts[i:i+len(root)], root) || slices.Equal(parts[i:i+len(root)], systemdNames(root)) {
			return parts[i+len(root):], true
		}
	}
	return nil, false
}

func systemdNames(root []string) []string {
	names := make([]string, len(root))
	prefix := ""
	for i, part := range root {
		// systemd reads "-" in a slice's name as a level; the kubelet writes "_".
		prefix += strings.ReplaceAll(strings.TrimSuffix(part, ".slice"), "-", "_")
		names[i] = prefix + ".slice"
		prefix += "-"
	}
	return names
}

func podOf(part string) (string, bool) {
	if slice, ok := strings.CutSuffix(part, ".slice"); ok {
		i := strings.LastIndex(slice, "-pod")
		if i < 0 {
			return "", false
		}
		uid := strings.ReplaceAll(slice[i+len("-pod"):], "_", "-")
		return uid, isPodUID(uid)
	}
	uid, ok := strings.CutPrefix(part, "pod")
	return uid, ok && isPodUID(uid)
}

// isPodUID accepts a UUID, and the 32 digits that the kubelet generates for static pods.
func isPodUID(text string) bool {
	switch len(text) {
	case 32:
		return isHex(text)
	case 36:
		for i := range len(text) {
			if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (text[i] == '-') || !dash && !isHex(text[i:i+1]) {
				return false
			}
		}
		return true
	}
	return false
}

// runtimes are the names that runtimes put before a container's ID.
func runtimes() []string { return []string{"cri-containerd", "crio", "docker", "libpod"} }

func containerOf(part string) (string, bool) {
	part = strings.TrimSuffix(part, ".scope")
	for _, runtime := range runtimes() {
		part = strings.TrimPrefix(part, runtime+"-")
	}
	return part, isContainerID(part)
}

// isContainerID reports whether text has the form of a container ID: 12 to 64 lower-case hexadecimal digits. Such a
// text is safe as a directory name.
func isContainerID(text string) bool { return len(text) >= 12 && len(text) <= 64 && isHex(text) }

func isHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return text != ""
}
