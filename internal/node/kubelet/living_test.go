package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// envExitedLeader turns the test program into a process whose first thread ends while others run.
const envExitedLeader = "BERTH_TEST_DEAD_LEADER"

func TestMain(m *testing.M) {
	if os.Getenv(envExitedLeader) != "" {
		deadLeader()
	}
	goleak.VerifyTestMain(m)
}

// deadLeader ends the first thread of the process only.
func deadLeader() {
	for {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			os.Stdout.WriteString("ready\n")
			syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
		}
		go deadLeader() // on another thread; one of them is the first
		time.Sleep(time.Second)
	}
}

// realCgroups is a hierarchy of real cgroups, seen in a mount namespace of the test's thread.
type realCgroups struct {
	t testing.TB
	// proc is a folder like /proc: its mountinfo names only the hierarchy, and its processes are the real ones.
	proc string
	// dir is where the hierarchy is mounted, root the cgroup of this test in it.
	dir  string
	root string
}

// mountCgroups mounts a hierarchy of the kernel: version 2, or one of version 1 that has a name and no controllers, so
// that the machine's own cgroups are not changed.
func mountCgroups(t testing.TB, version int) *realCgroups {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: cannot mount cgroups")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("cannot make a mount namespace: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("cannot make mounts private: %v", err)
	}
	c := &realCgroups{t: t, proc: t.TempDir(), dir: t.TempDir(), root: fmt.Sprintf("berth-test-%d", os.Getpid())}
	kind, options := "cgroup2", ""
	if version == 1 {
		kind, options = "cgroup", "none,name=berthtest"
	}
	if err := unix.Mount("cgroup", c.dir, kind, 0, options); err != nil {
		t.Skipf("cannot mount %s: %v", kind, err)
	}
	t.Cleanup(func() {
		c.clear()
		if err := unix.Unmount(c.dir, 0); err != nil {
			t.Error(err)
		}
	})
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "self" {
			_ = os.Symlink(filepath.Join("/proc", entry.Name()), filepath.Join(c.proc, entry.Name()))
		}
	}
	if err := os.Mkdir(filepath.Join(c.proc, "self"), 0o755); err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("31 23 0:26 / %s rw,relatime - %s cgroup rw,name=berthtest\n", c.dir, kind)
	if err := os.WriteFile(filepath.Join(c.proc, "self", "mountinfo"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// container creates the cgroup of a container and, if requested, one below it.
func (c *realCgroups) container(uid, id, below string) string {
	c.t.Helper()
	return c.make(filepath.Join("kubepods", "burstable", "pod"+uid, id, below))
}

// apart creates the cgroup of a container apart from its pod's.
func (c *realCgroups) apart(uid, id string) string {
	c.t.Helper()
	slice := systemdNames([]string{c.root})[0]
	return c.make("containerd.service/" + strings.TrimSuffix(slice, ".slice") + "-kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice:cri-containerd:" + id)
}

// make creates a cgroup below that of the test.
func (c *realCgroups) make(path string) string {
	c.t.Helper()
	dir := filepath.Join(c.dir, c.root, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// start runs a shell script in a cgroup, and returns when it has printed a line.
func (c *realCgroups) start(cgroup, script string, env ...string) *exec.Cmd {
	c.t.Helper()
	// The shell that moves itself is not in the mount namespace when another thread starts it.
	file, err := os.OpenFile(filepath.Join(cgroup, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	command := exec.Command("sh", "-c", "echo $$ >&3; exec 3>&-; "+script)
	command.Env = append(os.Environ(), env...)
	command.ExtraFiles = []*os.File{file}
	out, err := command.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	buffer := make([]byte, 16)
	if n, err := out.Read(buffer); err != nil {
		c.t.Fatalf("script %q printed nothing: %q, %v", script, buffer[:n], err)
	}
	c.t.Cleanup(func() { _ = command.Wait() })
	return command
}

// clear ends the processes in the test's cgroups and removes them, the deepest first.
func (c *realCgroups) clear() {
	var dirs []string
	_ = filepath.WalkDir(filepath.Join(c.dir, c.root), func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	deadline := time.Now().Add(20 * time.Second)
	for _, dir := range slices.Backward(dirs) {
		for {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if time.Now().After(deadline) {
				c.t.Errorf("remove %s: %v", dir, err)
				return
			}
			blob, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(blob)) {
				var number int
				if _, err := fmt.Sscan(pid, &number); err == nil && number > 0 {
					_ = unix.Kill(number, unix.SIGKILL)
				}
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// TestLivingIsWhatTheKernelCounts runs real processes that a walk over /proc would treat as ended, or miss, in real
// cgroups of both versions.
func TestLivingIsWhatTheKernelCounts(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		below  string
		script string
		env    string
		looks  int
		apart  bool
	}{
		"plain":                     {script: "echo ready; exec sleep 600", looks: 1},
		"apart from its pod":        {script: "echo ready; exec sleep 600", looks: 1, apart: true},
		"dead leader":               {script: "exec " + self, env: envExitedLeader + "=1", looks: 1},
		"double fork":               {script: "(sleep 600 & ) ; echo ready", looks: 1},
		"nested":                    {below: "a/b", script: "echo ready; exec sleep 600", looks: 1},
		"forks every 2 ms and ends": {script: `step() { sleep 0.002; step & }; echo ready; step`, looks: 300},
	}
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) {
			for name, tc := range tests {
				t.Run(name, func(t *testing.T) {
					c := mountCgroups(t, version)
					containers := NewContainers(ContainersDeps{ProcRoot: c.proc, CgroupRoot: "/" + c.root})
					lives := func() bool {
						t.Helper()
						found, err := containers.Live()
						if err != nil {
							t.Fatal(err)
						}
						return len(found) == 1 && found[0].PodUID == uid1 && found[0].ID == id1
					}
					dir := ""
					if tc.apart {
						dir = c.apart(uid1, id1)
					} else {
						dir = c.container(uid1, id1, tc.below)
					}
					if lives() {
						t.Fatal("an empty cgroup counts as a running container")
					}
					command := c.start(dir, tc.script, tc.env)
					if name == "double fork" {
						if err := command.Wait(); err != nil {
							t.Fatal(err)
						}
					}
					if name == "dead leader" {
						for deadline := time.Now().Add(20 * time.Second); !isZombie(t, command.Process.Pid); time.Sleep(time.Millisecond) {
							if time.Now().After(deadline) {
								t.Fatal("the first thread does not end")
							}
						}
					}
					missed := 0
					for range tc.looks {
						if !lives() {
							missed++
						}
					}
					if missed > 0 {
						t.Errorf("a running container counted as ended in %d of %d readings", missed, tc.looks)
					}
					c.clear()
					if lives() {
						t.Error("the container counts as running after its last process has ended")
					}
				})
			}
		})
	}
}

func isZombie(t *testing.T, pid int) bool {
	t.Helper()
	blob, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(blob), ") Z ")
}
