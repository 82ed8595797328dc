package kubelet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	maxMountinfo = 8 << 20
	// maxSearched bounds the cgroups among which those of the kubelet are searched.
	maxSearched = 20_000
	// maxDepth is how many levels down the kubelet's cgroup is searched.
	maxDepth = 12
)

// cgroupMount is a cgroup hierarchy that this process can see.
type cgroupMount struct {
	dir  string
	v2   bool
	rank int // lower ones are used first
}

// parseCgroupMounts returns the cgroup hierarchies in the text of /proc/self/mountinfo in order of preference: the one
// with the controller that limits devices, then version 2, then others; of several mounts of a hierarchy, the one with
// the highest root first.
func parseCgroupMounts(text string) []cgroupMount {
	var mounts []cgroupMount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimRight(line, "\n"), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		const root, point = 3, 4 // proc(5): the mount's root within its file system, the mount point
		if !ok || len(left) <= point || len(right) < 3 || right[0] != "cgroup" && right[0] != "cgroup2" {
			continue
		}
		m := cgroupMount{dir: unescapeMount(left[point]), v2: right[0] == "cgroup2"}
		controllers := strings.Split(right[2], ",")
		switch {
		case slices.Contains(controllers, "devices"):
			m.rank = 0
		case m.v2:
			m.rank = 100_000
		case slices.Contains(controllers, "memory"), slices.Contains(controllers, "pids"):
			m.rank = 200_000
		default:
			m.rank = 300_000
		}
		m.rank += viewpoint(left[root])
		mounts = append(mounts, m)
	}
	slices.SortFunc(mounts, func(a, b cgroupMount) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), strings.Compare(a.dir, b.dir))
	})
	return mounts
}

// viewpoint orders mounts of one hierarchy: a mount with a higher root shows more. In a cgroup namespace, paths above
// its own cgroup begin with "/..".
func viewpoint(root string) int {
	const own = 50_000
	up := 0
	for part := range strings.SplitSeq(strings.Trim(root, "/"), "/") {
		switch part {
		case "":
		case "..":
			up++
		default:
			return own + len(root) // a cgroup below: a container's own, for example
		}
	}
	return own - min(up, own)
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// findPlaces finds the cgroups of pods and containers. It returns none, without an error, on a machine on which no kubelet has
// run, and an error when only a part of the hierarchy is visible.
func findPlaces(procRoot, cgroupRoot string) (places, error) {
	blob, err := readBounded(filepath.Join(procRoot, "self", "mountinfo"), maxMountinfo)
	if err != nil {
		return places{}, fmt.Errorf("find cgroups: %w", err)
	}
	mounts := parseCgroupMounts(string(blob))
	whole := false
	for _, mount := range mounts {
		found, err := searchPlaces(mount, cgroupRoot)
		if err != nil {
			return places{}, fmt.Errorf("find cgroups of pods: %w", err)
		}
		if len(found.pods)+len(found.apart) > 0 {
			return found, nil
		}
		whole = whole || mount.isRoot()
	}
	if !whole {
		return places{}, errors.New("find cgroups of pods: no mounted cgroup hierarchy shows the machine's root, and none has a kubepods cgroup; mount the machine's /sys/fs/cgroup")
	}
	return places{}, nil
}

// isRoot reports whether a mount shows the machine's root cgroup, by files that only the root has or lacks.
func (m cgroupMount) isRoot() bool {
	if m.v2 {
		_, err := os.Stat(filepath.Join(m.dir, "cgroup.procs"))
		_, events := os.Stat(filepath.Join(m.dir, "cgroup.events"))
		return err == nil && errors.Is(events, fs.ErrNotExist)
	}
	_, err := os.Stat(filepath.Join(m.dir, "release_agent"))
	return err == nil
}

// searchPlaces finds the cgroups of one hierarchy that have those of pods and of containers of cgroupRoot. Those of pods within pods are
// left out unless a cgroupRoot asks for them, and nothing is searched that a container can have made.
func searchPlaces(mount cgroupMount, cgroupRoot string) (places, error) {
	var found places
	searched := 0
	level := []string{""}
	for depth := 0; depth < maxDepth && len(level) > 0; depth++ {
		var next []string
		for _, at := range level {
			if searched++; searched > maxSearched {
				return places{}, fmt.Errorf("%s has more than %d cgroups beside those of pods; set the kubelet's cgroupRoot",
					mount.dir, maxSearched)
			}
			names, err := childCgroups(filepath.Join(mount.dir, at))
			if err != nil {
				return places{}, err
			}
			for _, name := range names {
				if found.add(mount, at, name, cgroupRoot) {
					next = append(next, filepath.Join(at, name))
				}
			}
		}
		level = next
	}
	return found, nil
}

// add records the cgroup with a name below another one, and reports whether to search below it too.
func (p *places) add(mount cgroupMount, at, name, cgroupRoot string) (search bool) {
	path := filepath.Join(at, name)
	beside := apart{dir: filepath.Join(mount.dir, at), cgroupRoot: cgroupRoot, v2: mount.v2}
	if _, _, ok := beside.container(name); ok {
		if !slices.Contains(p.apart, beside) {
			p.apart = append(p.apart, beside)
		}
		return false
	}
	if !isKubepods(name) {
		return true
	}
	below, ok := beneath(strings.Split(path, "/"), cgroupRoot)
	if ok && (len(below) == 1 || cgroupRoot == "") {
		p.pods = append(p.pods, kubepods{filepath.Join(mount.dir, path), mount.v2})
		return false
	}
	return cgroupRoot != "" // a kubelet in a pod
}

// isKubepods reports whether the name is that of a kubelet's cgroup; with the systemd driver below a cgroupRoot it has
// the root's name as a prefix.
func isKubepods(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// childCgroups returns the sorted names of the cgroups directly below a cgroup; none if it was removed.
func childCgroups(dir string) ([]string, error) {
	if info, err := os.Lstat(dir); err != nil {
		if isRemoved(err) {
			return nil, nil
		}
		return nil, err
	} else if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 2 {
		return nil, nil // cgroup file systems count the folders below a folder here
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !isRemoved(err) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// namesIn returns all names in the directory of a cgroup; none if it was removed.
func namesIn(dir string) ([]string, error) {
	folder, err := os.Open(dir)
	if err != nil {
		if isRemoved(err) {
			err = nil
		}
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil && !isRemoved(err) {
		return nil, err
	}
	return names, nil
}

// isRemoved reports whether an error means that a cgroup was removed.
func isRemoved(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// readBounded reads at most limit bytes of a file of the kernel.
func readBounded(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit))
}
