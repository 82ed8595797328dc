package cdi

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

// need skips the test where a program that it runs is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: starting a container needs root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("skipped: %s is not installed", p)
		}
	}
}

func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := output(t, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// output returns stdout, and has stderr in the error.
func output(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), nil
}

// buildHook links the real hook as it is shipped, and checks that it is static.
func buildHook(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hook")
	command(t, []string{"CGO_ENABLED=1"}, "go", "build", "-trimpath", "-tags", "netgo,osusergo",
		"-ldflags", "-s -w -linkmode external -extldflags -static", "-o", file, "github.com/berth-gpu/berth/cmd/berth-cdi-hook")
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 || program.Section(".interp") != nil {
		t.Errorf("the hook is not static: it needs %v (%v)", libraries, err)
	}
	return file
}

// bundle is a container of runc with the probe as its program.
type bundle struct {
	m    *machine
	dir  string
	spec oci.Spec
}

func newBundle(m *machine, t *testing.T) *bundle {
	t.Helper()
	b := &bundle{m: m, dir: t.TempDir()}
	rootfs := filepath.Join(b.dir, "rootfs")
	m.check(os.MkdirAll(filepath.Join(rootfs, "etc"), 0o755))
	command(t, []string{"CGO_ENABLED=0"}, "go", "build", "-o", filepath.Join(rootfs, "probe"), "testdata/probe/main.go")
	command(t, nil, "runc", "spec", "--bundle", b.dir)
	data, err := os.ReadFile(filepath.Join(b.dir, "config.json"))
	m.check(err)
	m.check(json.Unmarshal(data, &b.spec))
	b.spec.Process.Args = []string{"/probe"}
	b.spec.Process.Terminal = false
	caps := b.spec.Process.Capabilities
	for _, set := range []*[]string{&caps.Bounding, &caps.Effective, &caps.Permitted} {
		*set = append(*set, "CAP_MKNOD")
	}
	b.spec.Linux.CgroupsPath = "/berth-cdi-test-" + strconv.Itoa(os.Getpid())
	// As in container runtimes: creating device nodes is allowed, opening them is not.
	anything := int64(-1)
	b.spec.Linux.Resources.Devices = append(b.spec.Linux.Resources.Devices,
		oci.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &anything, Minor: &anything, Access: "m"})
	return b
}

// run returns the output of the container.
func (b *bundle) run(t *testing.T) (stdout string, err error) {
	t.Helper()
	data, err := json.Marshal(b.spec)
	b.m.check(err)
	b.m.check(os.WriteFile(filepath.Join(b.dir, "config.json"), data, 0o644))
	return output(t, nil, "runc", "--root", t.TempDir(), "run", "--bundle", b.dir, filepath.Base(b.spec.Linux.CgroupsPath))
}

// TestContainer starts containers with runc according to the spec, with the real hooks, and inspects them from the
// inside.
func TestContainer(t *testing.T) {
	need(t, "runc", "go", "gcc")
	if runtime.GOARCH != "amd64" {
		t.Skip("skipped: the library folder checked is that of amd64")
	}
	s := newSimulated(t, "a100x8-40g")
	m := s.machine
	if out, err := newBundle(m, t).run(t); err != nil {
		t.Skipf("skipped: runc cannot start any container on this machine: %s%v", out, err)
	}
	hookPath, err := InstallHook(buildHook(t), m.path("opt/berth"))
	m.check(err)
	deps := m.edits()
	deps.HookPath = hookPath
	w := New(m.depsOf(deps))
	m.sync(w)

	for name, change := range map[string]func(*oci.Spec){
		"writable root":  func(s *oci.Spec) { s.Root.Readonly = false },
		"read-only root": func(s *oci.Spec) { s.Root.Readonly = true },
		"other user":     func(s *oci.Spec) { s.Process.User = oci.User{UID: 1000, GID: 1000} },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBundle(m, t)
			change(&b.spec)
			b.spec.Process.Args = append(b.spec.Process.Args, "/usr/lib/x86_64-linux-gnu/lib*", "/usr/bin/nvidia-*",
				"/etc/nvidia/*/*", "/lib/firmware/nvidia/*/*")
			injectInto(t, m.dir, &b.spec, string(m.snapshot.GPUs[1].UUID), string(m.snapshot.GPUs[2].UUID))
			out, err := b.run(t)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			checkProbe(t, m.snapshot, out, b.spec.Process.User.UID == 0)
		})
	}

	t.Run("MPS", func(t *testing.T) { checkMPS(t, s, w) })

	// A missing hook would keep the container from starting; the next Sync leaves it out.
	m.check(os.Remove(hookPath))
	b := newBundle(m, t)
	injectInto(t, m.dir, &b.spec, "0")
	if _, err := b.run(t); err == nil {
		t.Error("a container started although its hook is missing")
	}
	m.sync(w)
	b = newBundle(m, t)
	injectInto(t, m.dir, &b.spec, "0")
	if out, err := b.run(t); err != nil {
		t.Errorf("the container does not start without hooks: %v\n%s", err, out)
	}
}

// checkMPS checks that a container with a replica has its GPU's pipes and shared memory, can write to both, and has
// nothing of the other daemon.
func checkMPS(t *testing.T, s *simulated, w *Writer) {
	mine, other := s.snapshot.GPUs[1].UUID, s.snapshot.GPUs[2].UUID
	extras := Extras{MPS: []MPSDevice{s.daemon(mine), s.daemon(other)}}
	for i := range extras.MPS {
		for _, dir := range []string{extras.MPS[i].PipeDir, extras.MPS[i].ShmDir} {
			s.check(os.Chmod(dir, 0o1777))
			s.check(os.WriteFile(filepath.Join(dir, "control-"+string(extras.MPS[i].GPU)), nil, 0o666))
		}
	}
	s.syncWith(w, extras)
	b := newBundle(s.machine, t)
	b.spec.Process.User = oci.User{UID: 1000, GID: 1000}
	pipes := mpsPipePath(mine)
	b.spec.Process.Args = append(b.spec.Process.Args, "/mps/*/pipe/*", "/dev/shm/*", "write:"+pipes+"/lock", "write:/dev/shm/cuda.shm")
	injectInto(t, s.dir, &b.spec, string(mine), mpsName(mine))
	out, err := b.run(t)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got struct {
		Files map[string]string
		Env   []string
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]string{
		pipes + "/control-" + string(mine): "file", "/dev/shm/control-" + string(mine): "file",
		pipes + "/lock": "written", "/dev/shm/cuda.shm": "written",
	}
	shared := map[string]string{}
	for file, what := range got.Files {
		if strings.HasPrefix(file, "/mps/") || strings.HasPrefix(file, "/dev/shm/") {
			shared[file] = what
		}
	}
	if diff := cmp.Diff(want, shared); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if env := MPSPipeVariable + "=" + pipes; !slices.Contains(got.Env, env) {
		t.Errorf("environment: %v, want %s", got.Env, env)
	}
}

// checkProbe checks that the container has the GPUs 1 and 2 of the snapshot, and no other.
func checkProbe(t *testing.T, snapshot *gpu.Snapshot, out string, root bool) {
	t.Helper()
	var got struct {
		Nodes  map[string]string
		Files  map[string]string
		Env    []string
		Cache  []string
		Forged string
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	var nodes []string
	for node, opened := range got.Nodes {
		number, why, _ := strings.Cut(opened, " ")
		nodes = append(nodes, node+" "+number)
		// Without the hardware opening fails with ENXIO; EPERM comes from the device cgroup.
		if why == "operation not permitted" {
			t.Errorf("opening its own %s: %s", node, why)
		}
	}
	slices.Sort(nodes)
	var want []string
	for _, node := range slices.Concat(snapshot.Vendor(gpu.NVIDIA).Shared, snapshot.GPUs[1].Nodes, snapshot.GPUs[2].Nodes) {
		want = append(want, fmt.Sprintf("%s %d:%d", node.Path, node.Major, node.Minor))
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	if root && got.Forged != "operation not permitted" {
		t.Errorf("opening a forged /dev/nvidia0: %s, want: operation not permitted", got.Forged)
	}
	version := snapshot.Vendor(gpu.NVIDIA).Driver.Version
	g, render := filepath.Base(snapshot.GPUs[2].Nodes[1].Path), filepath.Base(snapshot.GPUs[2].Nodes[2].Path)
	byPath := "/dev/dri/by-path/pci-" + snapshot.GPUs[2].PCI.String()
	lib := "/" + libFolder + "/"
	for file, want := range map[string]string{
		lib + "libcuda.so." + version: "file",
		lib + "libcuda.so.1":          "-> libcuda.so." + version,
		lib + "libcuda.so":            "-> libcuda.so.1",
		lib + "libnvidia-ml.so.1":     "-> libnvidia-ml.so." + version,
		"/usr/bin/nvidia-smi":         "file",
		byPath + "-card":              "-> ../" + g,
		byPath + "-render":            "-> ../" + render,
		"/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin":             "file",
		"/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf": "file",
	} {
		if got.Files[file] != want {
			t.Errorf("%s is %q, want %q", file, got.Files[file], want)
		}
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if !slices.Contains(got.Cache, lib+name) {
			t.Errorf("the library cache does not have %s: %v", name, got.Cache)
		}
	}
	if !slices.Contains(got.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("environment: %v", got.Env)
	}
}

func injectInto(t *testing.T, dir string, spec *oci.Spec, devices ...string) {
	t.Helper()
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(dir), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range devices {
		names = append(names, QualifiedName(d))
	}
	if _, err := cache.InjectDevices(spec, names...); err != nil {
		t.Fatal(err)
	}
}
