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

// Options are what Create leaves to its caller; the zero value is what a person wants.
type Options struct {
	// Seed decides the UUIDs and serial numbers; empty means the absolute path of the directory, so that
	// two nodes differ and a machine made again in the same place is the same.
	Seed string
	// NoDeviceNodes leaves out the device nodes, which otherwise are made when the process may.
	NoDeviceNodes bool
	// MIGProfilesInMIGMode is a driver that names the MIG profiles of a GPU only while its MIG mode is on (R535 and older).
	MIGProfilesInMIGMode bool
	// ProcDevices is the list of device numbers in use on this host; empty means /proc/devices.
	ProcDevices string
}

// Machine is one simulated machine: a state directory.
type Machine struct {
	dir string
	hw  *hardware

	mu     sync.Mutex
	cached *view
}

// view is one version of the machine; it is shared and never changed.
type view struct {
	key fileKey
	hw  *hardware
	st  *state
	// order are the slots of the cards in the machine, which is NVML's enumeration.
	order []int
}

// Profiles are the names that Create takes, sorted.
func Profiles() []string { return profile.Names() }

// Create makes a machine in dir, which is empty or does not exist. A directory that already
// holds this profile is opened as it is; any other content is refused.
func Create(dir, profileName string) (*Machine, error) {
	return CreateWith(dir, profileName, Options{})
}

// CreateWith is Create with options.
func CreateWith(dir, profileName string, options Options) (*Machine, error) {
	spec, err := profile.Load(profileName)
	if err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create simulated machine: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, stateFile)); err == nil {
		return reopen(dir, profileName, options.Seed)
	}
	if options.Seed == "" {
		options.Seed = dir
	}
	hw, err := design(dir, spec, options)
	if err != nil {
		return nil, err
	}
	hw.MIGProfilesInMIGMode = options.MIGProfilesInMIGMode
	return install(dir, hw)
}

// checkFolder refuses a folder that holds something else than a machine, finished or not.
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
		switch e.Name() {
		case hardwareFile, stateFile, "." + hardwareFile + ".new":
			return nil
		case lockFile:
		default:
			foreign = e.Name()
		}
	}
	if foreign != "" {
		return fmt.Errorf("create simulated machine in %s: the folder is not empty (it has %s) and holds no simulated machine; name a new folder", dir, foreign)
	}
	return nil
}

func reopen(dir, profileName, seed string) (*Machine, error) {
	hw, err := readHardware(dir)
	if err != nil {
		return nil, fmt.Errorf("open simulated machine: %w", err)
	}
	if hw.Profile != profileName || (seed != "" && seed != hw.Seed) {
		return nil, fmt.Errorf("create simulated machine in %s: it already holds a %s (seed %q); name another folder, or delete this one", dir, hw.Profile, hw.Seed)
	}
	m := &Machine{dir: dir, hw: hw}
	return m, m.repairLocked()
}

// design decides everything about a machine that never changes.
func design(dir string, spec *profile.Machine, options Options) (*hardware, error) {
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
	if err := tryMknod(dir); err != nil {
		hw.NodesError = fmt.Sprintf("this process may not make device nodes here (mknod: %v); create the machine as root with CAP_MKNOD", err)
	}
	return hw, nil
}

// tryMknod finds out whether device nodes can be made.
func tryMknod(dir string) error {
	name := filepath.Join(dir, ".mknod")
	defer os.Remove(name)
	return unix.Mknod(name, unix.S_IFCHR|0o600, int(unix.Mkdev(nvidiaMajor, 255)))
}

// install writes the machine; state.json comes last and makes it one.
func install(dir string, hw *hardware) (*Machine, error) {
	st := &state{Version: stateVersion, DriverLoads: 1, GPUs: make([]cardState, len(hw.GPUs))}
	if err := writeJSON(filepath.Join(dir, hardwareFile), hw); err != nil {
		return nil, err
	}
	if err := appendEvents(dir, nil); err != nil {
		return nil, err
	}
	if err := syncTree(dir, hw, st); err != nil {
		return nil, err
	}
	if err := appendKernelLog(dir, hw, nil); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(dir, stateFile), st); err != nil {
		return nil, err
	}
	return &Machine{dir: dir, hw: hw}, nil
}

// Open opens a machine, and completes what a crash left undone.
func Open(dir string) (*Machine, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open simulated machine: %w", err)
	}
	hw, err := readHardware(dir)
	if err == nil {
		_, err = keyOf(filepath.Join(dir, stateFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open simulated machine: %s holds none; make one with: berth sim create %s --profile h100x8", dir, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open simulated machine: %w", err)
	}
	m := &Machine{dir: dir, hw: hw}
	v, err := m.view()
	if err != nil {
		return nil, err
	}
	if !logBehind(dir, v.st) && !kernelLogBehind(dir, hw, v.st) && !treeBehind(dir, hw, v.st) {
		return m, nil
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return m, m.repairLocked()
}

// repairLocked makes the log and the tree follow the state.
func (m *Machine) repairLocked() error {
	st, err := readState(m.dir, len(m.hw.GPUs))
	if err != nil {
		return fmt.Errorf("open simulated machine: %w", err)
	}
	return m.follow(st)
}

// Dir is the state directory, an absolute path.
func (m *Machine) Dir() string { return m.dir }

// Root is the root of the machine's file tree: usr, lib, dev, proc and sys.
func (m *Machine) Root() string { return filepath.Join(m.dir, rootFolder) }

// view is the machine now. It costs one stat while nothing changed.
func (m *Machine) view() (*view, error) {
	path := filepath.Join(m.dir, stateFile)
	key, err := keyOf(path)
	if err != nil {
		return nil, fmt.Errorf("read simulated machine: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cached != nil && m.cached.key == key {
		return m.cached, nil
	}
	st, err := readState(m.dir, len(m.hw.GPUs))
	if err != nil {
		return nil, fmt.Errorf("read simulated machine: %w", err)
	}
	// The file may be newer than the key: then the next call reads it once more.
	m.cached = newView(m.hw, st, key)
	return m.cached, nil
}

func newView(hw *hardware, st *state, key fileKey) *view {
	v := &view{key: key, hw: hw, st: st}
	for slot := range st.GPUs {
		if !st.GPUs[slot].Removed {
			v.order = append(v.order, slot)
		}
	}
	return v
}

// change is every change of a machine: lock, read, change, commit, then let the log and the
// tree follow.
func (m *Machine) change(edit func(st *state) ([]event, error)) error {
	unlock, err := lock(m.dir)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := readState(m.dir, len(m.hw.GPUs))
	if err != nil {
		return fmt.Errorf("read simulated machine: %w", err)
	}
	// An earlier change may have been cut off after its commit; its outbox is about to be replaced.
	if logBehind(m.dir, old) {
		if err := appendEvents(m.dir, old.Outbox); err != nil {
			return err
		}
	}
	if kernelLogBehind(m.dir, m.hw, old) {
		if err := appendKernelLog(m.dir, m.hw, old.Outbox); err != nil {
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
	if err := writeJSON(filepath.Join(m.dir, stateFile), st); err != nil {
		return err
	}
	return m.follow(st)
}

// follow makes the logs and the tree follow the state. The caller holds the lock.
func (m *Machine) follow(st *state) error {
	// The driver writes its line to the kernel's log before NVML hears of the error.
	if err := appendKernelLog(m.dir, m.hw, st.Outbox); err != nil {
		return err
	}
	if err := appendEvents(m.dir, st.Outbox); err != nil {
		return err
	}
	return syncTree(m.dir, m.hw, st)
}

// Inject breaks something.
func (m *Machine) Inject(fault Fault) error {
	err := m.change(func(st *state) ([]event, error) {
		if fault.String() == "" {
			return nil, errors.New("no fault named: say what to break")
		}
		at := target{}
		if !fault.ofNode() {
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

// Clear repairs a GPU, or with ClearAll every GPU and the driver, or with ClearDriver the
// driver: all faults go, counters start at zero, a removed card is back. Its MIG layout and settings stay.
func (m *Machine) Clear(gpuRef string) error {
	err := m.change(func(st *state) ([]event, error) {
		if gpuRef == ClearDriver || gpuRef == ClearAll {
			st.Transients = nil
			if st.DriverGone {
				st.loadDriver()
			}
		}
		switch gpuRef {
		case ClearDriver:
			return []event{{Type: eventClear, Note: "driver"}}, nil
		case ClearAll:
			for slot := range st.GPUs {
				repairCard(m.hw, st, slot)
			}
			return []event{{Type: eventClear, Note: "all"}}, nil
		}
		at, err := find(m.hw, st, gpuRef)
		if err != nil {
			return nil, err
		}
		repairCard(m.hw, st, at.slot)
		return []event{{Type: eventClear, GPU: m.hw.GPUs[at.slot].UUID}}, nil
	})
	if err != nil {
		return fmt.Errorf("clear faults: %w", err)
	}
	return nil
}

// repairCard takes all faults from a card, and its NVLinks up at both ends.
func repairCard(hw *hardware, st *state, slot int) {
	c := &st.GPUs[slot]
	for _, number := range c.LinksDown {
		if link := hw.GPUs[slot].Links[number]; link.Peer >= 0 {
			peer := &st.GPUs[link.Peer]
			peer.LinksDown = without(peer.LinksDown, link.PeerLink)
		}
	}
	*c = cardState{
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
