package cdi

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdiedits"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	driverVersion = "570.86.15"
	libFolder     = "usr/lib/x86_64-linux-gnu"
)

// machine is a driver tree with a snapshot that describes it.
type machine struct {
	t        testing.TB
	root     string // the driver root, the dev root and, if wanted, the host's root
	dir      string // the CDI directory
	hook     string
	snapshot *gpu.Snapshot
}

func newMachine(t testing.TB, gpus int) *machine {
	t.Helper()
	t.Setenv("XDG_DATA_DIRS", "") // nvcdi looks for configuration there
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, root: root, dir: filepath.Join(t.TempDir(), "cdi"), snapshot: &gpu.Snapshot{
		Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: driverVersion, CUDA: gpu.Version{Major: 12, Minor: 8}}}},
	}}
	for _, lib := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-opticalflow.so", "libnvidia-allocator.so"} {
		m.file(libFolder + "/" + lib + "." + driverVersion)
	}
	m.link(libFolder+"/libcuda.so.1", "libcuda.so."+driverVersion)
	m.link(libFolder+"/libnvidia-ml.so.1", "libnvidia-ml.so."+driverVersion)
	m.file("lib/firmware/nvidia/" + driverVersion + "/gsp_ga10x.bin")
	m.executable("usr/bin/nvidia-smi")
	m.executable("usr/bin/nvidia-cuda-mps-control")
	m.file("run/nvidia-persistenced/socket") // a plain file is enough: it is mounted, not opened
	m.file("usr/share/glvnd/egl_vendor.d/10_nvidia.json")
	m.executable("sbin/ldconfig")
	m.executable("opt/berth/berth-cdi-hook-0123456789ab")
	m.hook = m.path("opt/berth/berth-cdi-hook-0123456789ab")

	m.control("nvidiactl", 195, 255)
	m.control("nvidia-uvm", 510, 0)
	m.control("nvidia-uvm-tools", 510, 1)
	m.control("nvidia-modeset", 195, 254)
	for i := range gpus {
		m.addGPU(i)
	}
	return m
}

func (m *machine) path(relative string) string { return filepath.Join(m.root, relative) }

func (m *machine) file(relative string) {
	m.t.Helper()
	m.write(relative, "# "+relative, 0o644)
}

func (m *machine) executable(relative string) {
	m.t.Helper()
	m.write(relative, "#!/bin/true", 0o755)
}

func (m *machine) write(relative, content string, mode fs.FileMode) {
	m.t.Helper()
	m.check(os.MkdirAll(filepath.Dir(m.path(relative)), 0o755))
	m.check(os.WriteFile(m.path(relative), []byte(content), mode))
}

func (m *machine) link(relative, target string) {
	m.t.Helper()
	m.check(os.Symlink(target, m.path(relative)))
}

func (m *machine) remove(relative string) {
	m.t.Helper()
	m.check(os.RemoveAll(m.path(relative)))
}

func (m *machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// node creates a character device, or a plain file where that is not allowed.
func (m *machine) node(name string, major, minor uint32) gpu.DeviceNode {
	m.t.Helper()
	p := m.path("dev/" + name)
	m.check(os.MkdirAll(filepath.Dir(p), 0o755))
	if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		m.check(os.WriteFile(p, nil, 0o666))
	}
	m.check(os.Chmod(p, 0o666))
	return gpu.DeviceNode{Path: "/dev/" + name, HostPath: p, Major: major, Minor: minor}
}

// plain creates a plain file for a node, of which the inventory has no numbers.
func (m *machine) plain(node *gpu.DeviceNode) {
	m.t.Helper()
	m.check(os.Remove(node.HostPath))
	m.check(os.WriteFile(node.HostPath, nil, 0o666))
	node.Major, node.Minor = 0, 0
}

// realNodes reports whether this process may create character devices.
func (m *machine) realNodes() bool {
	info, err := os.Lstat(m.path("dev/nvidiactl"))
	m.check(err)
	return info.Mode()&fs.ModeCharDevice != 0
}

func (m *machine) control(name string, major, minor uint32) {
	nvidia := m.snapshot.Vendor(gpu.NVIDIA)
	nvidia.Shared = append(nvidia.Shared, m.node(name, major, minor))
}

func uuid(i int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("GPU-%08d-1111-2222-3333-444444444444", i))
}

func migUUID(i, j int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("MIG-%08d-%04d-2222-3333-444444444444", i, j))
}

func (m *machine) addGPU(i int) *gpu.GPU {
	m.snapshot.GPUs = append(m.snapshot.GPUs, gpu.GPU{
		Vendor: gpu.NVIDIA,
		UUID:   uuid(i), Index: i, Minor: i,
		PCI:    gpu.PCIAddress{Bus: uint8(0x10 + i)},
		Nodes:  []gpu.DeviceNode{m.node(fmt.Sprintf("nvidia%d", i), 195, uint32(i))},
		Health: gpu.Health{State: gpu.Healthy},
	})
	return &m.snapshot.GPUs[len(m.snapshot.GPUs)-1]
}

// drm gives a GPU DRM nodes.
func (m *machine) drm(i int) {
	g := &m.snapshot.GPUs[i]
	g.Nodes = append(g.Nodes,
		m.node(fmt.Sprintf("dri/card%d", i), 226, uint32(i)),
		m.node(fmt.Sprintf("dri/renderD%d", 128+i), 226, uint32(128+i)))
}

// mig enables MIG on a GPU with one device per profile.
func (m *machine) mig(i int, profiles ...string) {
	g := &m.snapshot.GPUs[i]
	g.MIG = gpu.MIG{Capable: true, Enabled: true}
	for j, profile := range profiles {
		gi := uint32(100*i + 10*j + 3)
		g.MIG.Devices = append(g.MIG.Devices, gpu.MIGDevice{
			Partition: gpu.Partition{UUID: migUUID(i, j), Profile: profile, Index: j, Nodes: []gpu.DeviceNode{
				m.node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", gi), 237, gi),
				m.node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", gi+1), 237, gi+1),
			}},
			GI: j,
		})
	}
}

func (m *machine) deps() Deps {
	return m.depsOf(m.edits())
}

// edits returns NVIDIA's search for edits.
func (m *machine) edits() cdiedits.Deps {
	// A call of this library panics unless nvcdi is known to make it.
	return cdiedits.Deps{DriverRoot: m.root, DevRoot: m.root, Library: &mock.Interface{}, HookPath: m.hook}
}

// depsOf returns the dependencies of a Writer with these edits.
func (m *machine) depsOf(edits cdiedits.Deps) Deps {
	return Deps{
		Dir:    m.dir,
		Roots:  Roots{Driver: edits.DriverRoot, Dev: edits.DevRoot, Host: edits.HostRoot},
		Vendor: cdiedits.New(edits),
	}
}

func (m *machine) writer() *Writer { return New(m.deps()) }

// searching returns a Writer whose search for driver files is replaced; real is nvcdi's.
func (m *machine) searching(search func(version string, real search) (*specs.ContainerEdits, error)) *Writer {
	real := cdiedits.Nvcdi(m.edits())
	deps := m.edits()
	deps.Search = func(version string) (*specs.ContainerEdits, error) { return search(version, real) }
	return New(m.depsOf(deps))
}

type search = func(version string) (*specs.ContainerEdits, error)

// render returns the spec, which must exist.
func (m *machine) render(w *Writer) []byte {
	m.t.Helper()
	data, err := w.Render(m.t.Context(), m.snapshot, Extras{})
	if err != nil {
		m.t.Fatal(err)
	}
	return data
}

// sync must succeed; it reports whether the file was written.
func (m *machine) sync(w *Writer) bool {
	m.t.Helper()
	changed, err := w.Sync(m.t.Context(), m.snapshot, Extras{})
	if err != nil {
		m.t.Fatal(err)
	}
	return changed
}

// normal replaces paths and numbers that differ between machines.
func (m *machine) normal(data []byte) []byte {
	data = bytes.ReplaceAll(data, []byte(m.path("sbin/ldconfig")), []byte("/sbin/ldconfig"))
	return bytes.ReplaceAll(data, []byte(m.root), []byte("ROOT"))
}

func codes(problems []gpu.Cause) string {
	var list []string
	for _, p := range problems {
		list = append(list, p.Code)
	}
	return strings.Join(list, " ")
}
