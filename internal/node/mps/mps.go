package mps

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// NoLimit as pinned memory leaves a client's memory unlimited.
const NoLimit int64 = -1

// Wanted is a daemon that is to run.
type Wanted struct {
	GPU gpu.UUID `json:"gpu"`
	// Index and Replicas are for the reader of a log; limits are in the other fields.
	Index    int `json:"index"`
	Replicas int `json:"replicas"`
	// PinnedMemoryMiB is the most device memory that a client process may have, or NoLimit.
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB"`
	// ActiveThreadPercentage is the share of the multiprocessors that it may use.
	ActiveThreadPercentage int `json:"activeThreadPercentage"`
	// MultiUser lets clients of different UIDs run together; else a second UID waits for the first.
	MultiUser bool `json:"multiUser"`
}

func (w Wanted) limits() Limits {
	return Limits{PinnedMemoryMiB: w.PinnedMemoryMiB, ActiveThreadPercentage: w.ActiveThreadPercentage, MultiUser: w.MultiUser}
}

// Limits are what a daemon is to enforce on each client process.
type Limits struct {
	PinnedMemoryMiB        int64 `json:"pinnedMemoryMiB"`
	ActiveThreadPercentage int   `json:"activeThreadPercentage"`
	MultiUser              bool  `json:"multiUser"`
}

// State is how far a daemon is.
type State string

// The states. Only a Ready daemon takes clients with the limits that are wanted.
const (
	Starting State = "Starting"
	Ready    State = "Ready"
	Failed   State = "Failed"
	Stopping State = "Stopping"
)

// Status is a daemon as it is.
type Status struct {
	GPU   gpu.UUID `json:"gpu"`
	State State    `json:"state"`
	// Reason is a sentence: why it is not Ready, or what is worth knowing of one that is.
	Reason string `json:"reason,omitempty"`
	// PID is the control daemon's, 0 while there is none.
	PID int `json:"pid,omitempty"`
	// Since is when State was last changed.
	Since time.Time `json:"since"`
	// Restarts counts how often this supervisor started the daemon again after it had ended or failed.
	Restarts int `json:"restarts"`
	// Limits are what was set last, and Answer is what the daemon said to that; zero before it did.
	Limits Limits `json:"limits"`
	Answer Answer `json:"answer"`
}

// PipeDir is the pipe directory of a GPU's daemon; its clients need it as CUDA_MPS_PIPE_DIRECTORY.
func PipeDir(root string, id gpu.UUID) string { return filepath.Join(root, string(id), "pipe") }

// LogDir is the log directory of a GPU's daemon.
func LogDir(root string, id gpu.UUID) string { return filepath.Join(root, string(id), "log") }

// ShmDir is what the daemon of a GPU has as /dev/shm, and its clients need there.
func ShmDir(root string, id gpu.UUID) string { return filepath.Join(root, string(id), "shm") }

// SocketPath is the supervisor's socket unless another is configured.
func SocketPath(root string) string { return filepath.Join(root, "control.sock") }

// The largest set and the largest numbers in it; what is above is a mistake.
const (
	maxWanted    = 64
	maxMemoryMiB = 1 << 30
	maxReplicas  = 1 << 10
)

// cardName is the form of a whole GPU's UUID. A UUID becomes a folder's name, so nothing
// else may pass.
var cardName = regexp.MustCompile(`^GPU-[0-9A-Za-z-]{1,64}$`)

// checked returns the set in the order of UUIDs, or says what is wrong with it.
func checked(set []Wanted) ([]Wanted, error) {
	if len(set) > maxWanted {
		return nil, fmt.Errorf("%d daemons are wanted, the most is %d", len(set), maxWanted)
	}
	set = slices.SortedFunc(slices.Values(set), func(a, b Wanted) int { return cmp.Compare(a.GPU, b.GPU) })
	for i, w := range set {
		switch {
		case !cardName.MatchString(string(w.GPU)):
			return nil, fmt.Errorf("%q is not the UUID of a whole GPU; MPS runs on whole GPUs (GPU-...), not on MIG devices", w.GPU)
		case i > 0 && set[i-1].GPU == w.GPU:
			return nil, fmt.Errorf("%s is wanted twice; a GPU has one daemon, so name it once", w.GPU)
		case w.Index < 0:
			return nil, fmt.Errorf("%s: index is %d, must be 0 or more", w.GPU, w.Index)
		case w.Replicas < 1 || w.Replicas > maxReplicas:
			return nil, fmt.Errorf("%s: replicas is %d, must be 1 to %d", w.GPU, w.Replicas, maxReplicas)
		case w.ActiveThreadPercentage < 1 || w.ActiveThreadPercentage > 100:
			return nil, fmt.Errorf("%s: activeThreadPercentage is %d, must be 1 to 100", w.GPU, w.ActiveThreadPercentage)
		case w.PinnedMemoryMiB != NoLimit && (w.PinnedMemoryMiB < 1 || w.PinnedMemoryMiB > maxMemoryMiB):
			return nil, fmt.Errorf("%s: pinnedMemoryMiB is %d, must be 1 to %d, or %d for no limit", w.GPU, w.PinnedMemoryMiB, maxMemoryMiB, NoLimit)
		}
	}
	return set, nil
}
