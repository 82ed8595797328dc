package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// Options are the optional arguments of CreateWith.
type Options struct {
	// Seed determines the UUIDs and serial numbers. If empty, it is the absolute path of the directory: two nodes
	// differ, and a machine that is recreated in the same place is the same.
	Seed string
	// NoDeviceNodes omits the device nodes; otherwise they are created if the process is permitted to.
	NoDeviceNodes bool
	// MIGProfilesInMIGMode simulates a driver that lists a GPU's MIG profiles only in MIG mode (R535 and older).
	MIGProfilesInMIGMode bool
	// Driver is the version of the driver, one of Drivers; empty means the newest.
	Driver string
	// Clique is the NVLink fabric of several nodes that the GPUs have joined, CLUSTER-UUID.CLIQUE-ID; empty means the one of the profile.
	Clique string
	// Files are the driver's files that have code; none for a machine that only this process uses.
	Files Files
	// ProcDevices is the file that lists the device numbers in use on this host; empty means /proc/devices.
	ProcDevices string
}

// Machine is one simulated machine, stored in a directory.
type Machine struct {
	// root is the root of its file tree.
	root string
	hw   *hardware

	mu     sync.Mutex
	cached *view
}

// view is one version of the machine. It is shared and immutable.
type view struct {
	key fileKey
	hw  *hardware
	st  *state
	// order lists the slots of the GPUs that are present, in NVML's order of enumeration.
	order []int
}

// Profiles lists the profile names that Create accepts, sorted.
func Profiles() []string { return profile.Names() }

// Create creates a machine in dir, which must be empty or not exist. If dir already contains a machine of this profile,
// Create opens it; other content is an error.
func Create(dir, profileName string) (*Machine, error) {
	return CreateWith(dir, profileName, Options{})
}

// CreateWith is Create with options.
func CreateWith(dir, profileName string, options Options) (*Machine, error) {
	spec, err := profile.Load(profileName)
	if err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	if err := join(spec, options.Clique); err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	root := filepath.Join(dir, rootFolder)
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(root, machineFolder), 0o755); err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	unlock, err := lock(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(root, stateFile)); err == nil {
		return reopen(root, profileName, options.Seed)
	}
	if options.Seed == "" {
		options.Seed = dir
	}
	driver, err := findRelease(options.Driver)
	if err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	hw, err := design(root, spec, options)
	if err != nil {
		return nil, err
	}
	driver.MIGProfilesInMIGMode = driver.MIGProfilesInMIGMode || options.MIGProfilesInMIGMode
	if err := installFiles(root, &driver, options.Files, 1); err != nil {
		return nil, err
	}
	hw.setRelease(driver)
	return install(root, hw)
}

// checkFolder returns an error if the folder contains anything but a machine, complete or not.
func checkFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create simulated machine: %w", err)
	}
	foreign := ""
	for _, e := range entries {
		if e.Name() != rootFolder {
			foreign = e.Name()
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, rootFolder, machineFolder)); foreign == "" && len(entries) > 0 && err != nil {
		foreign = rootFolder
	}
	if foreign != "" {
		return fmt.Errorf("create simulated machine in %s: the folder is not empty (it has %s) and holds no "+
			"simulated machine; name a new folder", dir, foreign)
	}
	return nil
}

func reopen(root, profileName, seed string) (*Machine, error) {
	hw, err := readHardware(root)
	if err != nil {
		return nil, fmt.Errorf("open simulated machine: %w", err)
	}
	if hw.Profile != profileName || (seed != "" && seed != hw.Seed) {
		return nil, fmt.Errorf("create simulated machine in %s: it already holds a %s (seed %q); name another "+
			"folder, or delete this one", root, hw.Profile, hw.Seed)
	}
	m := &Machine{root: root, hw: hw}
	return m, m.repairLocked()
}

// design determines everything about a machine that never changes.
func design(root string, spec *profile.Machine, options Options) (*hardware, error) {
	if options.NoDeviceNodes {
		hw, err := build(spec, options.Seed, majors{
			NVIDIA: nvidiaMajor, DRM: drmMajor, UVM: dynamicLast - 1, Caps: dynamicLast,
			GDRCopy: dynamicLast - 2, GDS: dynamicLast - 3, Verbs: dynamicLast - 4, IMEX: dynamicLast - 5,
		})
		if err == nil {
			hw.NodesError = "not wanted (--no-device-nodes)"
		}
		return hw, err
	}
	procDevices := options.ProcDevices
	if procDevices == "" {
		procDevices = "/proc/devices"
	}
	numbers, err := chooseMajors(procDevices)
	if err != nil {
		return nil, err
	}
	hw, err := build(spec, options.Seed, numbers)
	if err != nil {
		return nil, err
	}
	if err := tryMknod(root); err != nil {
		hw.NodesError = fmt.Sprintf("this process may not make device nodes here (mknod: %v); create the machine "+
			"as root with CAP_MKNOD", err)
	}
	return hw, nil
}

// tryMknod reports whether device nodes can be created.
func tryMknod(root string) error {
	name := filepath.Join(root, machineFolder, ".mknod")
	defer os.Remove(name)
	return unix.Mknod(name, unix.S_IFCHR|0o600, int(unix.Mkdev(nvidiaMajor, 255)))
}

// install writes the machine. It writes state.json last: a directory without it is not a machine.
func install(root string, hw *hardware) (*Machine, error) {
	st := &state{Version: stateVersion, DriverLoads: 1, GPUs: make([]gpuState, len(hw.GPUs))}
	if err := writeJSON(filepath.Join(root, hardwareFile), hw); err != nil {
		return nil, err
	}
	if err := appendEvents(root, nil); err != nil {
		return nil, err
	}
	if err := syncTree(root, hw, st); err != nil {
		return nil, err
	}
	if err := appendKernelLog(root, hw, nil); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(root, stateFile), st); err != nil {
		return nil, err
	}
	return &Machine{root: root, hw: hw}, nil
}

// Open opens a machine, and completes a change that a crash has interrupted.
func Open(dir string) (*Machine, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open simulated machine: %w", err)
	}
	return OpenRoot(filepath.Join(dir, rootFolder))
}

// OpenRoot opens the machine whose file tree has that root, which may be mounted elsewhere than it was made.
func OpenRoot(root string) (*Machine, error) {
	hw, err := readHardware(root)
	if err == nil {
		_, err = keyOf(filepath.Join(root, stateFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open simulated machine: %s has none; create one with: berth sim create %s --profile a100x8-40g", filepath.Dir(root), filepath.Dir(root))
	}
	if err != nil {
		return nil, fmt.Errorf("open simulated machine: %w", err)
	}
	m := &Machine{root: root, hw: hw}
	v, err := m.view()
	if err != nil {
		return nil, err
	}
	if !logBehind(root, v.st) && !kernelLogBehind(root, hw, v.st) && !treeBehind(root, hw, v.st) {
		return m, nil
	}
	unlock, err := lock(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return m, m.repairLocked()
}

// repairLocked brings the logs and the tree in line with the state.
func (m *Machine) repairLocked() error {
	st, err := readState(m.root, len(m.hw.GPUs))
	if err != nil {
		return fmt.Errorf("open simulated machine: %w", err)
	}
	return m.follow(st)
}

// Dir returns the absolute path of the directory that Create was given.
func (m *Machine) Dir() string { return filepath.Dir(m.root) }

// Root returns the root of the file tree: usr, lib, dev, proc, sys, and the state of the machine.
func (m *Machine) Root() string { return m.root }

// view returns the current version. While nothing changes, it costs one stat.
func (m *Machine) view() (*view, error) {
	path := filepath.Join(m.root, stateFile)
	key, err := keyOf(path)
	if err != nil {
		return nil, fmt.Errorf("read simulated machine: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cached != nil && m.cached.key == key {
		return m.cached, nil
	}
	st, err := readState(m.root, len(m.hw.GPUs))
	if err != nil {
		return nil, fmt.Errorf("read simulated machine: %w", err)
	}
	// If the file is newer than the key, the next call reads it again.
	m.cached = newView(m.hw, st, key)
	return m.cached, nil
}

func newView(hw *hardware, st *state, key fileKey) *view {
	v := &view{key: key, hw: hw.with(st), st: st}
	for slot := range st.GPUs {
		if !st.GPUs[slot].Removed {
			v.order = append(v.order, slot)
		}
	}
	return v
}

// change performs every change of a machine: it takes the lock, reads the state, edits and commits it, and updates the
// logs and the tree.
func (m *Machine) change(edit func(st *state) ([]event, error)) error {
	unlock, err := lock(m.root)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := readState(m.root, len(m.hw.GPUs))
	if err != nil {
		return fmt.Errorf("read simulated machine: %w", err)
	}
	// A crash may have interrupted an earlier change after its commit; its outbox is about to be replaced.
	if logBehind(m.root, old) {
		if err := appendEvents(m.root, old.Outbox); err != nil {
			return err
		}
	}
	if kernelLogBehind(m.root, m.hw, old) {
		if err := appendKernelLog(m.root, m.hw, old.Outbox); err != nil {
			return err
		}
	}
	st := old.clone()
	events, err := edit(st)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	for i := range events {
		st.Seq++
		events[i].Seq, events[i].Time = st.Seq, now
	}
	st.Outbox = events
	if err := writeJSON(filepath.Join(m.root, stateFile), st); err != nil {
		return err
	}
	return m.follow(st)
}

// follow brings the logs and the tree in line with the state. The caller holds the lock.
func (m *Machine) follow(st *state) error {
	// As on real hardware, the kernel log has the line before NVML reports the error.
	if err := appendKernelLog(m.root, m.hw, st.Outbox); err != nil {
		return err
	}
	if err := appendEvents(m.root, st.Outbox); err != nil {
		return err
	}
	return syncTree(m.root, m.hw, st)
}

// Inject injects a fault.
func (m *Machine) Inject(fault Fault) error {
	err := m.change(func(st *state) ([]event, error) {
		if fault.String() == "" {
			return nil, errors.New("no fault given: want one or more, such as --xid 79 (berth sim inject --help lists them)")
		}
		at := target{}
		if !fault.ofMachine() {
			var err error
			if at, err = find(m.hw, st, fault.GPU); err != nil {
				return nil, err
			}
		}
		if err := fault.check(m.hw, at.slot); err != nil {
			return nil, err
		}
		return fault.apply(m.hw, st, at, time.Now()), nil
	})
	if err != nil {
		return fmt.Errorf("inject fault: %w", err)
	}
	return nil
}

// Clear repairs a GPU, every GPU and the driver (ClearAll), or the driver (ClearDriver): faults end, counters restart
// and removed GPUs return. The MIG layout and settings stay.
func (m *Machine) Clear(gpuRef string) error {
	err := m.change(func(st *state) ([]event, error) {
		if gpuRef == ClearDriver || gpuRef == ClearAll {
			st.Transients, st.CUDA = nil, ""
			if st.DriverGone {
				st.loadDriver()
			}
		}
		switch gpuRef {
		case ClearDriver:
			return []event{{Type: eventClear, Note: "driver"}}, nil
		case ClearAll:
			for slot := range st.GPUs {
				repairGPU(m.hw, st, slot)
			}
			return []event{{Type: eventClear, Note: "all"}}, nil
		}
		at, err := find(m.hw, st, gpuRef)
		if err != nil {
			return nil, err
		}
		repairGPU(m.hw, st, at.slot)
		return []event{{Type: eventClear, GPU: m.hw.GPUs[at.slot].UUID}}, nil
	})
	if err != nil {
		return fmt.Errorf("clear faults: %w", err)
	}
	return nil
}

// repairGPU ends all faults of a GPU and brings its NVLinks up at both ends.
func repairGPU(hw *hardware, st *state, slot int) {
	c := &st.GPUs[slot]
	for _, number := range c.LinksDown {
		if link := hw.GPUs[slot].Links[number]; link.Peer >= 0 {
			peer := &st.GPUs[link.Peer]
			peer.LinksDown = without(peer.LinksDown, link.PeerLink)
		}
	}
	*c = gpuState{
		MIGEnabled: c.MIGEnabled, MIGPending: c.MIGPending, Instances: c.Instances,
		ComputeMode: c.ComputeMode, TimeSlice: c.TimeSlice, Lives: c.Lives + 1,
	}
	for i := range c.Instances {
		c.Instances[i].Busy = false
	}
}

func without(numbers []int, drop int) []int {
	var out []int
	for _, n := range numbers {
		if n != drop {
			out = append(out, n)
		}
	}
	return out
}
