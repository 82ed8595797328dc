package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The files of a machine, below the root of its file tree. What the machine is and its state are in the tree too, so that the
// driver's library and programs find them wherever the tree is mounted, or as the root of a chroot.
const (
	machineFolder = "var/lib/berth-sim"
	lockFile      = machineFolder + "/lock"
	hardwareFile  = machineFolder + "/hardware.json"
	stateFile     = machineFolder + "/state.json"
	eventsFile    = machineFolder + "/events.log"
	treeFile      = machineFolder + "/tree.json"
	kmsgFile      = "dev/kmsg"
)

// rootFolder is the root of the file tree, in the directory that Create is given.
const rootFolder = "root"

// stateVersion is the version of the format of state.json.
const stateVersion = 1

// maxFile is how much of a file in the directory is read at most.
const maxFile = 16 << 20

// lockPatience is how long a change waits for the lock.
const lockPatience = 10 * time.Second

// state is the part of a machine that changes: faults, MIG layout and settings. Writing it is the only commit point.
type state struct {
	Version int `json:"version"`
	// DriverGone is true while no driver is loaded; DriverLoads counts the loads.
	DriverGone  bool   `json:"driverGone,omitempty"`
	DriverLoads uint64 `json:"driverLoads"`
	// Driver is the driver that was installed after the machine was created; nil while it has its first one.
	Driver *release `json:"driver,omitempty"`
	// Transients are the injected errors of calls of the library.
	Transients []transient `json:"transients,omitempty"`
	// CUDA is the fault of libcuda.so.1, as in Fault.
	CUDA string `json:"cuda,omitempty"`
	// MPSAnswers is how MPS control daemons answer; "" means the first of MPSAnswers.
	MPSAnswers string `json:"mpsAnswers,omitempty"`
	// GPUs is indexed by slot.
	GPUs []gpuState `json:"gpus"`
	// Seq is the number of the last event. Outbox has the events of the last change, which may be missing from the log
	// after a crash.
	Seq    uint64  `json:"seq"`
	Outbox []event `json:"outbox,omitempty"`
}

// gpuState has the faults, the MIG layout and the settings of a GPU.
type gpuState struct {
	Removed bool `json:"removed,omitempty"`
	Lost    bool `json:"lost,omitempty"`
	OffBus  bool `json:"offBus,omitempty"`
	// XIDs are those reported since the last repair.
	XIDs []uint64 `json:"xids,omitempty"`
	// DoubleBitECC counts uncorrected errors in DRAM that were not contained, ContainedECC those that were, and ECCSRAM
	// uncorrected errors in SRAM.
	DoubleBitECC uint64 `json:"doubleBitECC,omitempty"`
	ContainedECC uint64 `json:"containedECC,omitempty"`
	ECCSRAM      uint64 `json:"eccSRAM,omitempty"`
	// Temperature is in degrees Celsius; 0 means the idle temperature.
	Temperature int `json:"temperature,omitempty"`
	// RowRemap is "", "pending" or "failed".
	RowRemap  string `json:"rowRemap,omitempty"`
	LinksDown []int  `json:"linksDown,omitempty"`
	Hangs     []hang `json:"hangs,omitempty"`
	// Transients are the injected errors of calls that concern the GPU.
	Transients []transient `json:"transients,omitempty"`
	// The following fields are as in Fault.
	RetiredPages bool   `json:"retiredPages,omitempty"`
	Throttle     string `json:"throttle,omitempty"`
	Fabric       string `json:"fabric,omitempty"`
	NVLinkErrors uint64 `json:"nvlinkErrors,omitempty"`
	Recovery     string `json:"recovery,omitempty"`
	CUDA         string `json:"cuda,omitempty"`
	// RecoveryFrom is when the driver starts to report Recovery.
	RecoveryFrom time.Time `json:"recoveryFrom,omitzero"`
	// Lives counts the resets of the GPU and the loads of its driver.
	Lives uint `json:"lives,omitempty"`

	// Busy means that a process uses the GPU itself.
	Busy bool `json:"busy,omitempty"`
	// Openers are programs that have the GPU open. The slice is replaced, never modified.
	Openers []Opener `json:"openers,omitempty"`
	// Work is what programs do on the GPU. It is replaced, never modified.
	Work *Work `json:"work,omitempty"`

	MIGEnabled bool `json:"migEnabled,omitempty"`
	// MIGPending is true while a change of the mode waits for a reset.
	MIGPending bool          `json:"migPending,omitempty"`
	Instances  []gpuInstance `json:"instances,omitempty"`
	// ComputeMode is NVML's number, TimeSlice the number that nvidia-smi compute-policy takes; 0 is the default of
	// both.
	ComputeMode int32 `json:"computeMode,omitempty"`
	TimeSlice   int   `json:"timeSlice,omitempty"`
}

// hang is a call that is delayed by For; 0 means until the fault is cleared.
type hang struct {
	Call string        `json:"call"`
	For  time.Duration `json:"for,omitempty"`
}

// gpuInstance is a GPU instance, computeInstance a compute instance in it.
type gpuInstance struct {
	ID      int               `json:"id"`
	Profile uint32            `json:"profile"`
	Start   int               `json:"start"`
	Size    int               `json:"size"`
	Compute []computeInstance `json:"compute,omitempty"`
	// Busy means that a process uses the instance.
	Busy bool `json:"busy,omitempty"`
}

type computeInstance struct {
	ID      int    `json:"id"`
	Profile uint32 `json:"profile"`
	Start   int    `json:"start"`
	Size    int    `json:"size"`
}

func (s *state) clone() *state {
	out := *s
	out.Outbox = nil
	out.Transients = slices.Clone(s.Transients)
	out.GPUs = slices.Clone(s.GPUs)
	for i := range out.GPUs {
		g := &out.GPUs[i]
		g.XIDs, g.LinksDown, g.Hangs = slices.Clone(g.XIDs), slices.Clone(g.LinksDown), slices.Clone(g.Hangs)
		g.Transients = slices.Clone(g.Transients)
		g.Instances = slices.Clone(g.Instances)
		for j := range g.Instances {
			g.Instances[j].Compute = slices.Clone(g.Instances[j].Compute)
		}
	}
	return &out
}

// readJSON reads a file of the directory, up to maxFile.
func readJSON(path string, into any) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file by rename, so that readers see either the old or the new content. The caller holds the
// lock. It does not sync to disk: a killed process loses nothing, a power loss ends the simulation anyway, and a busy
// disk would delay an XID that must be visible within milliseconds.
func writeJSON(path string, value any) error {
	content, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	err = os.WriteFile(temporary, append(content, '\n'), 0o644)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func readHardware(root string) (*hardware, error) {
	hw := &hardware{}
	if err := readJSON(filepath.Join(root, hardwareFile), hw); err != nil {
		return nil, err
	}
	if hw.Version != hardwareVersion {
		return nil, fmt.Errorf("%s in %s has version %d, this Berth reads version %d; create the machine again",
			hardwareFile, root, hw.Version, hardwareVersion)
	}
	return hw, nil
}

func readState(root string, slots int) (*state, error) {
	st := &state{}
	if err := readJSON(filepath.Join(root, stateFile), st); err != nil {
		return nil, err
	}
	if st.Version != stateVersion {
		return nil, fmt.Errorf("%s in %s has version %d, this Berth reads version %d; create the machine again",
			stateFile, root, st.Version, stateVersion)
	}
	if len(st.GPUs) != slots {
		return nil, fmt.Errorf("%s in %s has %d GPUs, %s has %d: the files do not belong together; create the "+
			"machine again", stateFile, root, len(st.GPUs), hardwareFile, slots)
	}
	return st, nil
}

// lock takes the lock of the directory. The kernel releases it when the process ends.
func lock(root string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(root, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock of %s: %w", root, err)
	}
	deadline := time.Now().Add(lockPatience)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w (another process changes this machine; see who has %s open)", root,
				err, filepath.Join(root, lockFile))
		}
		time.Sleep(wait)
	}
}

// fileKey distinguishes versions of a file. Every change is a rename, so that the inode changes too.
type fileKey struct {
	inode uint64
	size  int64
	mtime int64
}

func keyOf(path string) (fileKey, error) {
	var stat unix.Stat_t
	for {
		err := unix.Stat(path, &stat)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fileKey{}, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		return fileKey{inode: stat.Ino, size: stat.Size, mtime: stat.Mtim.Nano()}, nil
	}
}
