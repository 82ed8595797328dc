package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const table = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
31 22 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu
32 22 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
40 22 254:0 /data/my\040box/nodes/node-0/kubelet /data/my\040box/nodes/node-0/kubelet rw - ext4 /dev/vda rw
41 40 0:44 / /data/my\040box/nodes/node-0/kubelet/pods/x rw - tmpfs tmpfs rw
42 22 254:0 / /data/my\040boxes rw - ext4 /dev/vda rw
`

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMountsBelow(t *testing.T) {
	mounts, err := readMounts(write(t, filepath.Join(t.TempDir(), "mountinfo"), table))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/data/my box/nodes/node-0/kubelet/pods/x", "/data/my box/nodes/node-0/kubelet"}
	if diff := cmp.Diff(want, mountsBelow(mounts, "/data/my box")); diff != "" {
		t.Errorf("deepest first, and not the sibling whose name starts alike (-want +got):\n%s", diff)
	}
}

func TestMalformedMountTable(t *testing.T) {
	if mounts, err := readMounts(write(t, filepath.Join(t.TempDir(), "mountinfo"), table+"this is no mount\n")); err == nil {
		t.Errorf("no error, and mounts %v", mounts)
	}
}

func TestDetectCgroups(t *testing.T) {
	for name, c := range map[string]struct {
		table string
		want  *cgroupFS
	}{
		"v1 with v2 beside it": {table, &cgroupFS{roots: []string{"/sys/fs/cgroup/pids",
			"/sys/fs/cgroup/cpu,cpuacct"}, beside: []string{"/sys/fs/cgroup/unified"}}},
		"v2": {"32 22 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			&cgroupFS{v2: true, roots: []string{"/sys/fs/cgroup"}}},
		"none": {"22 1 254:0 / / rw - ext4 /dev/vda rw\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := detectCgroups(write(t, filepath.Join(t.TempDir(), "mountinfo"), c.table))
			if (err != nil) != (c.want == nil) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(cgroupFS{})); diff != "" {
				t.Errorf("cgroups (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCgroupTrackingPrefersPids(t *testing.T) {
	c := &cgroupFS{roots: []string{"/c/cpu", "/c/pids", "/c/memory"}}
	if got := c.tracking(); got != "/c/pids" {
		t.Errorf("want /c/pids, got %s", got)
	}
}

func TestCgroupProcesses(t *testing.T) {
	root, beside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "box", "cgroup.procs"), "7\n")
	write(t, filepath.Join(root, "box", "node-0", "pod", "cgroup.procs"), "9\n8\n")
	write(t, filepath.Join(beside, "box", "cgroup.procs"), "9\n11\n")
	write(t, filepath.Join(root, "boxes", "cgroup.procs"), "12\n")
	c := &cgroupFS{roots: []string{root}, beside: []string{beside}}
	if diff := cmp.Diff([]int{7, 8, 9, 11}, c.processes("/box")); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

func TestNamespaceMembers(t *testing.T) {
	proc := t.TempDir()
	line := func(root, point string) string {
		return "50 1 254:0 " + root + " " + point + " rw - ext4 /dev/vda rw\n"
	}
	for pid, table := range map[string]string{
		"100": line("/", "/") + line("/data/box/nodes/node-0/run", "/run"),
		"101": line("/", "/") + line("/data/box2/nodes/node-0/run", "/run"),
		"102": line("/", "/"),
		"103": line("/data/box/nodes/node-0/run", "/somewhere"),
		"not": line("/data/box/nodes/node-0/run", "/run"),
	} {
		write(t, filepath.Join(proc, pid, "mountinfo"), table)
	}
	if diff := cmp.Diff([]int{100}, namespaceMembers(proc, "/data/box")); diff != "" {
		t.Errorf("processes in a node of /data/box (-want +got):\n%s", diff)
	}
	for node, want := range map[string][]int{"node-0": {100}, "node-1": nil, "node-": nil} {
		if diff := cmp.Diff(want, nodeMembers(proc, "/data/box", node)); diff != "" {
			t.Errorf("processes in %s of /data/box (-want +got):\n%s", node, diff)
		}
	}
}

func TestMountPointsInUse(t *testing.T) {
	proc := t.TempDir()
	write(t, filepath.Join(proc, "5", "mountinfo"), "50 1 254:0 /x /etc/cdi rw - ext4 /dev/vda rw\n")
	got := mountPointsInUse(proc, []string{"/etc/cdi", "/var/lib/cni"})
	if diff := cmp.Diff([]string{"/etc/cdi"}, got); diff != "" {
		t.Errorf("mount points in use (-want +got):\n%s", diff)
	}
}

func TestBorrowedDirs(t *testing.T) {
	base := t.TempDir()
	mine, full, theirs := filepath.Join(base, "mine"), filepath.Join(base, "full"), filepath.Join(base, "theirs")
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	dirs := []string{mine, full, theirs}
	for range 2 { // the second sandbox finds existing directories
		release, err := borrowDirs(dirs)
		if err != nil {
			t.Skip("skipped: ", err)
		}
		release()
	}
	write(t, filepath.Join(full, "file"), "")
	if err := returnDirs(dirs); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{mine: false, full: true, theirs: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: want it to exist: %t, got %v", filepath.Base(dir), want, err)
		}
	}
}

func TestIdentityFollowsFromTheDirectory(t *testing.T) {
	id, cgroup := identity("/var/lib/berth-sandbox")
	again, _ := identity("/var/lib/berth-sandbox")
	other, _ := identity("/var/lib/berth-sandbox2")
	if id != again || id == other {
		t.Errorf("want the same for the same directory and another for another: %s, %s, %s", id, again, other)
	}
	if !strings.HasSuffix(cgroup, id) {
		t.Errorf("cgroup %s should carry %s", cgroup, id)
	}
}

func TestOptionsRefuse(t *testing.T) {
	for name, o := range map[string]Options{
		"hidden by the node's /run": {Dir: "/run/box"},
		"too many nodes":            {Dir: "/tmp/box", Nodes: 150, Hollow: 100},
		"fewer than none":           {Dir: "/tmp/box", Nodes: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if err := o.complete(); err == nil {
				t.Error("want an error")
			}
		})
	}
	o := Options{Dir: "/tmp/box"}
	if err := o.complete(); err != nil || o.Nodes != 1 {
		t.Errorf("without a number of nodes: want 1, got %d, %v", o.Nodes, err)
	}
}

func TestDecodeObjects(t *testing.T) {
	got, err := decodeObjects(strings.NewReader("---\n# nothing\n---\nkind: Pod\nmetadata: {name: a}\n---\n" +
		"kind: Pod\nmetadata: {name: b}\n"))
	if err != nil || len(got) != 2 || got[1].GetName() != "b" {
		t.Errorf("two pods: got %v, %v", got, err)
	}
	if _, err := decodeObjects(strings.NewReader("metadata: {name: a}\n")); err == nil {
		t.Error("an object without kind: want an error")
	}
}
