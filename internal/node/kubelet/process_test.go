package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	uid1   = "f2b9f4e5-ba3b-418e-ab8c-c1751a0619d8"
	uid2   = "60921126-5b78-4e9b-867f-371ba9a65349"
	static = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
)

var (
	id1 = strings.Repeat("1a", 32)
	id2 = strings.Repeat("2b", 32)
	id3 = strings.Repeat("3c", 32)
)

func TestParseCgroup(t *testing.T) {
	under1, under2 := strings.ReplaceAll(uid1, "-", "_"), strings.ReplaceAll(uid2, "-", "_")
	tests := map[string]struct {
		text string
		root string
		want Owner // CgroupPath left out
	}{
		"v2 cgroupfs": {text: "0::/kubepods/burstable/pod" + uid1 + "/" + id1,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"v2 cgroupfs, guaranteed": {text: "0::/kubepods/pod" + uid1 + "/" + id1 + "\n", want: Owner{PodUID: uid1, ContainerID: id1}},
		"v2 systemd, containerd": {text: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under1 + ".slice/cri-containerd-" + id1 + ".scope",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"v2 systemd, CRI-O": {text: "0::/kubepods.slice/kubepods-pod" + under1 + ".slice/crio-" + id1 + ".scope",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"v2 systemd, CRI-O's monitor": {text: "0::/kubepods.slice/kubepods-pod" + under1 + ".slice/crio-conmon-" + id1 + ".scope"},
		"v2 systemd, docker": {text: "0::/kubepods.slice/kubepods-pod" + under1 + ".slice/docker-" + id1 + ".scope",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"CRI-O on cgroupfs": {text: "0::/kubepods/besteffort/pod" + uid1 + "/crio-" + id1,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"systemd within the container": {text: "0::/kubepods/pod" + uid1 + "/" + id1 + "/init.scope",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"static pod": {text: "0::/kubepods/besteffort/pod" + static + "/" + id1,
			want: Owner{PodUID: static, ContainerID: id1}},
		"another cgroup namespace": {text: "0::/../../kubepods-besteffort-pod" + under1 + ".slice/cri-containerd-" + id1 + ".scope",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"pod in a pod": {text: "0::/kubepods/pod" + uid1 + "/" + id1 + "/kubelet/kubepods/pod" + uid2 + "/" + id2,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"pod in a pod, its root": {text: "0::/kubepods/pod" + uid1 + "/" + id1 + "/kubelet/kubepods/pod" + uid2 + "/" + id2,
			root: "/kubelet", want: Owner{PodUID: uid2, ContainerID: id2}},
		"own root, cgroupfs": {text: "0::/berth/node-0/kubepods/pod" + uid1 + "/" + id1,
			root: "/berth/node-0", want: Owner{PodUID: uid1, ContainerID: id1}},
		"own root, systemd": {text: "0::/berth.slice/berth-node_0.slice/berth-node_0-kubepods.slice/berth-node_0-kubepods-pod" + under1 + ".slice/cri-containerd-" + id1 + ".scope",
			root: "/berth/node-0", want: Owner{PodUID: uid1, ContainerID: id1}},
		"another kubelet's root": {text: "0::/berth/node-1/kubepods/pod" + uid1 + "/" + id1, root: "/berth/node-0"},
		"v1": {text: "12:pids:/kubepods/pod" + uid1 + "/" + id1 + "\n5:devices:/kubepods/pod" + uid1 + "/" + id1 + "\n1:name=systemd:/\n",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"v1, moved in one hierarchy": {text: "12:cpu,cpuacct:/kubepods/pod" + uid2 + "/" + id2 + "\n5:devices:/kubepods/pod" + uid1 + "/" + id1,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"v1 and v2": {text: "3:memory:/kubepods/pod" + uid1 + "/" + id1 + "\n0::/system.slice/containerd.service",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"systemd kubelet, containerd on cgroupfs, v2": {text: "0::/system.slice/kubepods-burstable-pod" + under1 + ".slice:cri-containerd:" + id1,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"systemd kubelet, containerd on cgroupfs, v1": {text: "1:name=systemd:/\n5:devices:/system.slice/containerd.service/kubepods-pod" + under1 + ".slice:cri-containerd:" + id1,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"systemd kubelet, containerd on cgroupfs, at the root": {text: "0::/kubepods-besteffort-pod" + static + ".slice:cri-containerd:" + id1 + "\n",
			want: Owner{PodUID: static, ContainerID: id1}},
		"systemd kubelet, CRI-O on cgroupfs": {text: "0::/kubepods-pod" + under1 + ".slice:crio:" + id1, want: Owner{PodUID: uid1, ContainerID: id1}},
		"joined, systemd within the container": {text: "0::/system.slice/kubepods-pod" + under1 + ".slice:cri-containerd:" + id1 + "/init.scope",
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"joined, another cgroup namespace": {text: "0::/../kubepods-pod" + under1 + ".slice:cri-containerd:" + id1,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"joined, made in a pod": {text: "0::/kubepods.slice/kubepods-pod" + under1 + ".slice/cri-containerd-" + id1 + ".scope/kubepods-pod" + under2 + ".slice:cri-containerd:" + id2,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"joined, made in a joined one": {text: "0::/system.slice/kubepods-pod" + under1 + ".slice:cri-containerd:" + id1 + "/kubepods-pod" + under2 + ".slice:cri-containerd:" + id2,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"a pod made in a joined one": {text: "0::/kubepods-pod" + under1 + ".slice:cri-containerd:" + id1 + "/kubepods/pod" + uid2 + "/" + id2,
			want: Owner{PodUID: uid1, ContainerID: id1}},
		"joined, directly in a pod": {text: "0::/kubepods.slice/kubepods-pod" + under1 + ".slice/kubepods-pod" + under2 + ".slice:cri-containerd:" + id2},
		"joined, own root": {text: "0::/system.slice/berth-node_0-kubepods-pod" + under1 + ".slice:cri-containerd:" + id1,
			root: "/berth/node-0", want: Owner{PodUID: uid1, ContainerID: id1}},
		"joined, another kubelet's root": {text: "0::/system.slice/berth-node_1-kubepods-pod" + under1 + ".slice:cri-containerd:" + id1, root: "/berth/node-0"},
		"joined, CRI-O's monitor":        {text: "0::/kubepods-pod" + under1 + ".slice:crio-conmon:" + id1},
		"joined, not of a slice":         {text: "0::/pod" + uid1 + ":cri-containerd:" + id1},
		"joined, a short UID":            {text: "0::/kubepods-podabc.slice:cri-containerd:" + id1},
		"joined, no ID":                  {text: "0::/kubepods-pod" + under1 + ".slice:cri-containerd:webapp"},
		"joined, a fourth text":          {text: "0::/kubepods-pod" + under1 + ".slice:cri-containerd:" + id1 + ":" + id2},
		"no pod":                         {text: "0::/system.slice/containerd.service"},
		"a pod's own cgroup":             {text: "0::/kubepods/pod" + uid1},
		"a short UID":                    {text: "0::/kubepods/podabc/" + id1},
		"no container":                   {text: "0::/kubepods/pod" + uid1 + "/shim"},
		"climbing":                       {text: "0::/kubepods/pod" + uid1 + "/../../etc"},
		"nothing":                        {text: ""},
		"nonsense":                       {text: ":::\n\n0\n0:\n0::\n::/"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := ParseCgroup(test.text, test.root)
			if ok != (test.want != Owner{}) {
				t.Errorf("found %v", ok)
			}
			if ok && !strings.Contains(test.text, got.CgroupPath) {
				t.Errorf("path %q", got.CgroupPath)
			}
			got.CgroupPath = ""
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// FuzzParseCgroup checks that a result has the form of a UID and of an ID, which are used as names of folders.
func FuzzParseCgroup(f *testing.F) {
	f.Add("0::/kubepods/burstable/pod"+uid1+"/"+id1, "/kubepods")
	f.Add("0::/a.slice/a-kubepods-pod"+strings.ReplaceAll(uid1, "-", "_")+".slice/cri-containerd-"+id1+".scope", "/a")
	f.Add("5:devices:/pod"+static+"/docker-"+id1, "")
	f.Add("0::/system.slice/a-kubepods-pod"+strings.ReplaceAll(uid1, "-", "_")+".slice:cri-containerd:"+id1, "/a")
	f.Fuzz(func(t *testing.T, text, root string) {
		owner, ok := ParseCgroup(text, root)
		if ok && (!isPodUID(owner.PodUID) || !isContainerID(owner.ContainerID) || !filepath.IsLocal(owner.ContainerID)) {
			t.Fatalf("%q gave %+v", text, owner)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add(statLine(7, "a) (b", "S", 12345))
	f.Add("1 (")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := parseStat(text); err == nil && !strings.Contains(text, ")") {
			t.Fatalf("%q was accepted", text)
		}
	})
}

func statLine(pid int, name, state string, start uint64) string {
	return fmt.Sprintf("%d (%s) %s 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 1000 100 18446744073709551615\n", pid, name, state, start)
}

// proc is a simulated /proc.
type proc struct {
	t    testing.TB
	root string
}

func newProc(t testing.TB) *proc { return &proc{t, t.TempDir()} }

func (p *proc) file(pid int, name, content string) {
	p.t.Helper()
	dir := filepath.Join(p.root, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proc) process(pid int, cgroup, state string) {
	p.file(pid, "cgroup", cgroup+"\n")
	p.file(pid, "stat", statLine(pid, "x) y", state, uint64(1000+pid)))
}

func podCgroup(uid, id string) string { return "0::/kubepods/pod" + uid + "/" + id }

func TestProcessOf(t *testing.T) {
	p := newProc(t)
	p.process(100, podCgroup(uid1, id1), "S")
	p.process(3, "0::/init.scope", "S")
	p.file(400, "cgroup", podCgroup(uid2, id2)) // ended between two reads
	got, err := ProcessOf(p.root, 100)
	want := Process{PID: 100, PodUID: uid1, ContainerID: id1, CgroupPath: "/kubepods/pod" + uid1 + "/" + id1, StartTime: 1100}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	apart := "/system.slice/containerd.service/kubepods-pod" + strings.ReplaceAll(uid2, "-", "_") + ".slice:cri-containerd:" + id2
	p.process(101, "0::"+apart, "S")
	got, err = ProcessOf(p.root, 101)
	want = Process{PID: 101, PodUID: uid2, ContainerID: id2, CgroupPath: apart, StartTime: 1101}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("in a cgroup apart from the pod's: %v, -want +got:\n%s", err, diff)
	}
	if _, err := ProcessOf(p.root, 3); !errors.Is(err, errNotInContainer) {
		t.Errorf("a process of the host: %v", err)
	}
	for _, pid := range []int{5, 400} {
		if _, err := ProcessOf(p.root, pid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("process %d, which does not exist: %v", pid, err)
		}
	}
	p.file(100, "stat", "100 (x")
	if _, err := ProcessOf(p.root, 100); err == nil || !strings.Contains(err.Error(), "no name in stat") {
		t.Errorf("bad stat: %v", err)
	}
}

// TestRealProc reads this machine's, if it has one.
func TestRealProc(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc")
	}
	if _, err := StartTime("/proc", os.Getpid()); err != nil {
		t.Error(err)
	}
	t.Setenv("BERTH_TEST", "1") // changes the memory, not what the kernel shows
	if env, err := Environment("/proc", os.Getpid()); err != nil || env["PATH"] == "" {
		t.Errorf("environment %v, %v", env, err)
	}
}

func TestEnvironment(t *testing.T) {
	p := newProc(t)
	p.file(1, "environ", "A=1\x00A=2\x00=x\x00B\x00C=a=b\x00")
	got, err := Environment(p.root, 1)
	if diff := cmp.Diff(map[string]string{"A": "1", "C": "a=b"}, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	p.file(1, "environ", "A=1\x00"+strings.Repeat("x", maxEnvironment))
	if got, err = Environment(p.root, 1); err != nil || got["A"] != "1" || len(got) != 1 {
		t.Errorf("a large one: %d variables, %v", len(got), err)
	}
}
