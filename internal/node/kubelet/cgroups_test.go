package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cgroupTree is a cgroup hierarchy in plain files.
type cgroupTree struct {
	t testing.TB
	// proc has the mountinfo that leads to dir.
	proc    string
	dir     string
	version int
}

func newCgroupTree(t testing.TB, version int) *cgroupTree {
	t.Helper()
	tree := &cgroupTree{t: t, proc: t.TempDir(), dir: t.TempDir(), version: version}
	tree.mounts(tree.line("/", tree.dir))
	if version == 1 {
		tree.file("release_agent", "")
	} else {
		tree.file("cgroup.procs", "")
	}
	return tree
}

func (c *cgroupTree) line(root, dir string) string {
	if c.version == 1 {
		return fmt.Sprintf("31 23 0:26 %s %s rw,relatime shared:9 - cgroup cgroup rw,devices", root, dir)
	}
	return fmt.Sprintf("31 23 0:26 %s %s rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate", root, dir)
}

func (c *cgroupTree) mounts(lines ...string) {
	c.t.Helper()
	dir := filepath.Join(c.proc, "self")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cgroupTree) file(path, content string) {
	c.t.Helper()
	path = filepath.Join(c.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// container gives a cgroup these processes; in version 2 those above it become populated too, as in the kernel.
func (c *cgroupTree) container(path string, pids ...int) {
	c.t.Helper()
	text := ""
	for _, pid := range pids {
		text += fmt.Sprintln(pid)
	}
	c.file(filepath.Join(path, "cgroup.procs"), text)
	if c.version == 1 {
		return
	}
	for at := path; at != "."; at = filepath.Dir(at) {
		populated := 0
		err := filepath.WalkDir(filepath.Join(c.dir, at), func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.Name() == "cgroup.procs" {
				if blob, err := os.ReadFile(path); err == nil && len(blob) > 0 {
					populated = 1
				}
			}
			return err
		})
		if err != nil {
			c.t.Fatal(err)
		}
		c.file(filepath.Join(at, "cgroup.events"), fmt.Sprintf("populated %d\nfrozen 0\n", populated))
	}
}

func (c *cgroupTree) remove(path string) {
	c.t.Helper()
	if err := os.RemoveAll(filepath.Join(c.dir, path)); err != nil {
		c.t.Fatal(err)
	}
}

// TestCgroupsOfKubelets checks drivers, prefixes, and which kubelet's pods are included.
func TestCgroupsOfKubelets(t *testing.T) {
	under, under2 := strings.ReplaceAll(uid1, "-", "_"), strings.ReplaceAll(uid2, "-", "_")
	tests := map[string]struct {
		path string // of the container
		root string // the kubelet's cgroupRoot
		want bool
	}{
		"cgroupfs, guaranteed": {path: "kubepods/pod" + uid1 + "/" + id1, want: true},
		"cgroupfs, burstable":  {path: "kubepods/burstable/pod" + uid1 + "/" + id1, want: true},
		"systemd, containerd": {path: "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/cri-containerd-" + id1 + ".scope",
			want: true},
		"systemd, CRI-O":                  {path: "kubepods.slice/kubepods-pod" + under + ".slice/crio-" + id1 + ".scope", want: true},
		"CRI-O's monitor is no container": {path: "kubepods.slice/kubepods-pod" + under + ".slice/crio-conmon-" + id1 + ".scope"},
		"a prefix, as in kind": {path: "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id1 + ".scope",
			want: true},
		"its own root": {path: "berth/node-0/kubepods/pod" + uid1 + "/" + id1, root: "/berth/node-0", want: true},
		"its own root, systemd": {path: "berth.slice/berth-node_0.slice/berth-node_0-kubepods.slice/berth-node_0-kubepods-pod" + under + ".slice/cri-containerd-" + id1 + ".scope",
			root: "/berth/node-0", want: true},
		"another kubelet's root": {path: "berth/node-1/kubepods/pod" + uid1 + "/" + id1, root: "/berth/node-0"},
		"a kubelet in a pod, its root": {path: "kubepods/pod" + uid2 + "/" + id2 + "/kubelet/kubepods/pod" + uid1 + "/" + id1,
			root: "/kubelet", want: true},
		"a pod in a pod, the outer kubelet": {path: "kubepods/pod" + uid2 + "/" + id2 + "/kubelet/kubepods/pod" + uid1 + "/" + id1},
		"apart":                             {path: "system.slice/containerd.service/kubepods-besteffort-pod" + under + ".slice:cri-containerd:" + id1, want: true},
		"apart, at the root":                {path: "kubepods-pod" + under + ".slice:cri-containerd:" + id1, want: true},
		"apart, its own root":               {path: "system.slice/berth-node_0-kubepods-pod" + under + ".slice:cri-containerd:" + id1, root: "/berth/node-0", want: true},
		"apart, another kubelet's root":     {path: "system.slice/berth-node_1-kubepods-pod" + under + ".slice:cri-containerd:" + id1, root: "/berth/node-0"},
		"apart, made in a pod":              {path: "kubepods.slice/kubepods-pod" + under2 + ".slice/cri-containerd-" + id2 + ".scope/kubepods-pod" + under + ".slice:cri-containerd:" + id1},
		"apart, made in one apart":          {path: "kubepods-pod" + under2 + ".slice:cri-containerd:" + id2 + "/kubepods-pod" + under + ".slice:cri-containerd:" + id1},
		"a pod made in one apart":           {path: "kubepods-pod" + under2 + ".slice:cri-containerd:" + id2 + "/kubepods/pod" + uid1 + "/" + id1},
		"apart in a pod, its root": {path: "kubepods-pod" + under2 + ".slice:cri-containerd:" + id2 + "/system.slice/kubelet-kubepods-pod" + under + ".slice:cri-containerd:" + id1,
			root: "/kubelet", want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, version := range []int{1, 2} {
				tree := newCgroupTree(t, version)
				tree.container("system.slice/ssh.service", 7)
				tree.container(tc.path, 42)
				cgroups := newCgroups(tree.proc, tc.root)
				pods, err := cgroups.pods()
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, pod := range pods {
					for _, container := range pod.Containers {
						found = found || pod.UID == uid1 && container.ID == id1 && container.Populated
					}
				}
				if found != tc.want {
					t.Errorf("v%d: found %v in %+v", version, found, pods)
				}
				pod, there, err := cgroups.pod(uid1)
				if err != nil || (there && len(pod.Containers) == 1 && pod.Containers[0].Populated) != tc.want {
					t.Errorf("v%d: for the one pod: %+v, %v, %v", version, pod, there, err)
				}
				if uids, err := cgroups.uids(); err != nil || tc.want && !slices.Contains(uids, uid1) {
					t.Errorf("v%d: UIDs %v, %v", version, uids, err)
				}
			}
		})
	}
}

// TestContainersApart follows pods of a kubelet with the systemd driver, whose runtime makes the containers' cgroups elsewhere.
func TestContainersApart(t *testing.T) {
	under1, under2 := strings.ReplaceAll(uid1, "-", "_"), strings.ReplaceAll(uid2, "-", "_")
	const service = "system.slice/containerd.service"
	pod1, pod2 := "kubepods.slice/kubepods-pod"+under1+".slice", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"+under2+".slice"
	for _, version := range []int{1, 2} {
		tree := newCgroupTree(t, version)
		cgroups, single := newCgroups(tree.proc, ""), newCgroups(tree.proc, "")
		check := func(when string, want ...cgroupOfPod) {
			t.Helper()
			var uids []string
			for i := range want {
				uids = append(uids, want[i].UID)
				got, there, err := single.pod(want[i].UID)
				if diff := cmp.Diff(want[i], got); diff != "" || !there || err != nil {
					t.Errorf("v%d, %s: pod %s: %v, %v (-want +got):\n%s", version, when, want[i].UID, there, err, diff)
				}
			}
			got, err := cgroups.pods()
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("v%d, %s: %v (-want +got):\n%s", version, when, err, diff)
			}
			if got, err := cgroups.uids(); !slices.Equal(got, uids) || err != nil {
				t.Errorf("v%d, %s: UIDs %v, %v; want %v", version, when, got, err, uids)
			}
		}
		in := func(path string) string { return filepath.Join(tree.dir, path) }
		apart := func(under, id string) string {
			return service + "/kubepods-pod" + under + ".slice:cri-containerd:" + id
		}
		container := func(path, id string, runs bool) cgroupOfContainer {
			return cgroupOfContainer{ID: id, Path: in(path), Populated: runs}
		}

		tree.container(service, 1)
		tree.container(pod1)
		// The pod of a runtime handler with the kubelet's driver.
		tree.container(pod2+"/cri-containerd-"+id3+".scope", 43)
		other := cgroupOfPod{UID: uid2, Path: in(pod2), Containers: []cgroupOfContainer{container(pod2+"/cri-containerd-"+id3+".scope", id3, true)}}
		check("before the first container", other, cgroupOfPod{UID: uid1, Path: in(pod1)})
		tree.container(apart(under1, id2))
		tree.container(apart(under1, id1), 42)
		for i, id := range []string{"..", "webapp", id1 + ":" + id1} { // IDs are names of folders of the runtime.
			tree.container(apart(under1, id), 50+i)
		}
		both := []cgroupOfContainer{container(apart(under1, id1), id1, true), container(apart(under1, id2), id2, false)}
		check("after it", other, cgroupOfPod{UID: uid1, Path: in(pod1), Containers: both})
		// The kubelet has removed the cgroup of a pod whose container runs on.
		tree.remove(pod1)
		check("of a forgotten pod", other, cgroupOfPod{UID: uid1, Containers: both})
		// A container makes cgroups in its own.
		for i := range maxSearched/100 + 1 {
			tree.file(fmt.Sprintf("%s/%d/kubepods-pod%s.slice:cri-containerd:%s/cgroup.procs", apart(under1, id1), i, under2, id1), "")
		}
		fresh, err := newCgroups(tree.proc, "").pods()
		if diff := cmp.Diff([]cgroupOfPod{other, {UID: uid1, Containers: both}}, fresh); diff != "" || err != nil {
			t.Errorf("v%d, with cgroups that a container has made: %v (-want +got):\n%s", version, err, diff)
		}
		tree.remove(apart(under1, id1))
		tree.remove(apart(under1, id2))
		check("after its end", other)
		for range searchEvery { // The place stays known while it has no container.
			if _, err := cgroups.pods(); err != nil {
				t.Fatal(err)
			}
		}
		tree.container(apart(under1, id1), 44)
		check("of the next one, whose pod was forgotten", other, cgroupOfPod{UID: uid1, Containers: both[:1]})
	}
}

// TestCgroupsUnseen checks that an empty result is returned only where the whole hierarchy is visible.
func TestCgroupsUnseen(t *testing.T) {
	for _, version := range []int{1, 2} {
		tree := newCgroupTree(t, version)
		cgroups := newCgroups(tree.proc, "")
		if pods, err := cgroups.pods(); err != nil || len(pods) > 0 {
			t.Errorf("v%d, before the first kubelet: %v, %v", version, pods, err)
		}
		// The kubelet starts while the agent runs, and later another one.
		tree.container("kubepods/pod"+uid1+"/"+id1, 1)
		if pods, err := cgroups.pods(); err != nil || len(pods) != 1 {
			t.Errorf("v%d, after it: %v, %v", version, pods, err)
		}
		tree.container("other/kubepods/pod"+uid2+"/"+id2, 2)
		var pods []cgroupOfPod
		for range searchEvery {
			var err error
			if pods, err = cgroups.pods(); err != nil {
				t.Fatal(err)
			}
		}
		if len(pods) != 2 {
			t.Errorf("v%d, after another kubelet came: %v", version, pods)
		}
		// A container's own part of the hierarchy, which has no pods.
		for _, gone := range []string{"kubepods", "other", "release_agent"} {
			tree.remove(gone)
		}
		tree.file("cgroup.events", "populated 1\n")
		if pods, err := cgroups.pods(); err == nil || !strings.Contains(err.Error(), "/sys/fs/cgroup") {
			t.Errorf("v%d, only a part can be seen: %v, %v", version, pods, err)
		}
		tree.mounts()
		if pods, err := cgroups.pods(); err == nil {
			t.Errorf("v%d, no cgroup is mounted: %v", version, pods)
		}
	}
}

// TestCgroupMounts checks the order of preference of several mounts.
func TestCgroupMounts(t *testing.T) {
	tests := map[string]struct {
		lines []string
		want  []string
	}{
		"hybrid": {
			lines: []string{
				"1 0 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", "2 0 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
				"3 0 0:3 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices", "4 0 0:4 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd",
				"5 0 0:5 / /sys rw - sysfs sysfs rw",
			},
			want: []string{"/sys/fs/cgroup/devices", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd"},
		},
		"in a container, version 1": {
			lines: []string{"1 0 0:1 /kubepods/pod1/c1 /sys/fs/cgroup/devices ro - cgroup cgroup rw,devices",
				"2 0 0:1 / /host/sys/fs/cgroup/devices ro master:1 - cgroup cgroup rw,devices"},
			want: []string{"/host/sys/fs/cgroup/devices", "/sys/fs/cgroup/devices"},
		},
		"in a cgroup namespace": {
			lines: []string{"1 0 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw",
				"2 0 0:1 /../../.. /host/sys/fs/cgroup ro - cgroup2 cgroup2 rw"},
			want: []string{"/host/sys/fs/cgroup", "/sys/fs/cgroup"},
		},
		"blanks, and nonsense": {
			lines: []string{`1 0 0:1 / /my\040cgroups rw - cgroup2 cgroup2 rw`, "1 0 - cgroup2", "", "1 0 0:1 / /x rw cgroup2"},
			want:  []string{"/my cgroups"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, mount := range parseCgroupMounts(strings.Join(tc.lines, "\n")) {
				got = append(got, mount.dir)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestTooManyCgroupsCountAsRunning checks that a container with very many cgroups counts as running.
func TestTooManyCgroupsCountAsRunning(t *testing.T) {
	tree := newCgroupTree(t, 1)
	for i := range maxNested + 1 {
		tree.container(fmt.Sprintf("kubepods/pod%s/%s/%d", uid1, id1, i))
	}
	pods, err := newCgroups(tree.proc, "").pods()
	if err != nil || len(pods) != 1 || !pods[0].Containers[0].Populated {
		t.Errorf("%+v, %v", pods, err)
	}
}

// BenchmarkCgroups reads real cgroups of 110 pods with three containers each. They are empty, which costs most, because
// version 1 has to read the cgroups below them.
func BenchmarkCgroups(b *testing.B) {
	for _, version := range []int{1, 2} {
		for name, ask := range map[string]func(*Containers) error{
			"all":  func(c *Containers) error { _, err := c.Live(); return err },
			"one":  func(c *Containers) error { _, err := c.LiveIn("00000007" + uid1[8:]); return err },
			"UIDs": func(c *Containers) error { _, err := c.PodUIDs(); return err },
		} {
			b.Run(fmt.Sprintf("v%d/%s", version, name), func(b *testing.B) {
				real := mountCgroups(b, version)
				for i := range 110 {
					uid := fmt.Sprintf("%08x%s", i, uid1[8:])
					for c := range 3 {
						real.container(uid, id1[2:]+fmt.Sprintf("%02x", c), "")
					}
				}
				containers := NewContainers(ContainersDeps{ProcRoot: real.proc, CgroupRoot: "/" + real.root})
				for b.Loop() {
					if err := ask(containers); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// FuzzParseCgroupMounts checks that any text results in mounts with a folder, and in the same ones each time.
func FuzzParseCgroupMounts(f *testing.F) {
	f.Add("1 0 0:1 /../.. /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw\n")
	f.Add(`1 0 0:1 /a /my\040cgroups rw - cgroup cgroup rw,devices`)
	f.Fuzz(func(t *testing.T, text string) {
		mounts := parseCgroupMounts(text)
		for _, mount := range mounts {
			if mount.dir == "" {
				t.Fatalf("%q returned a mount without a directory", text)
			}
		}
		if diff := cmp.Diff(mounts, parseCgroupMounts(text), cmp.AllowUnexported(cgroupMount{})); diff != "" {
			t.Fatalf("%q:\n%s", text, diff)
		}
	})
}
