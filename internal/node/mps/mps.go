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

// NoLimit as pinned memory means that a client's memory is not limited.
const NoLimit int64 = -1

// Wanted describes a daemon that should run.
type Wanted struct {
	GPU gpu.UUID `json:"gpu"`
	// Index and Replicas are only logged.
	Index    int `json:"index"`
	Replicas int `json:"replicas"`
	Limits
}

// Limits are the limits that a daemon enforces on each client process: gpu.MPSLimits as the socket and the files have them.
type Limits struct {
	// PinnedMemoryMiB is NoLimit or more than 0.
	PinnedMemoryMiB        int64 `json:"pinnedMemoryMiB"`
	ActiveThreadPercentage int   `json:"activeThreadPercentage"`
	// MultiUser lets clients of different UIDs run together; else a second UID waits for the first.
	MultiUser bool `json:"multiUser"`
}

// LimitsOf returns the limits of a unit or a claim as the socket has them.
func LimitsOf(l gpu.MPSLimits) Limits {
	return Limits{PinnedMemoryMiB: l.PinnedMemoryMiB, ActiveThreadPercentage: l.ActiveThreadPercentage, MultiUser: !l.SingleUser}
}

// MPSLimits returns the limits as units and claims have them.
func (l Limits) MPSLimits() gpu.MPSLimits {
	return gpu.MPSLimits{PinnedMemoryMiB: l.PinnedMemoryMiB, ActiveThreadPercentage: l.ActiveThreadPercentage, SingleUser: !l.MultiUser}
}

// State is the state of a daemon.
type State string

// The states. Only a Ready daemon serves clients with the wanted limits.
const (
	Starting State = "Starting"
	Ready    State = "Ready"
	Failed   State = "Failed"
	Stopping State = "Stopping"
)

// Status is the present status of a daemon.
type Status struct {
	GPU   gpu.UUID `json:"gpu"`
	State State    `json:"state"`
	// Reason says why the daemon is not Ready, or has remarks on one that is.
	Reason string `json:"reason,omitempty"`
	// PID is the control daemon's, 0 while there is none.
	PID int `json:"pid,omitempty"`
	// Since is when State was last changed.
	Since time.Time `json:"since"`
	// Restarts counts how often this supervisor started the daemon again after it had ended or failed.
	Restarts int `json:"restarts"`
	// Limits are the limits that were set last, and Answer is what the daemon reported then; both are zero until it
	// responds.
	Limits Limits `json:"limits"`
	Answer Answer `json:"answer"`
}

// PipeDir is the pipe directory of a GPU's daemon; its clients need it as CUDA_MPS_PIPE_DIRECTORY.
func PipeDir(root string, id gpu.UUID) string { return filepath.Join(root, string(id), "pipe") }

// logDir is the log directory of a GPU's daemon.
func logDir(root string, id gpu.UUID) string { return filepath.Join(root, string(id), "log") }

// ShmDir is the /dev/shm of a GPU's daemon; its clients need it there too.
func ShmDir(root string, id gpu.UUID) string { return filepath.Join(root, string(id), "shm") }

// SocketPath is the supervisor's socket unless another is configured.
func SocketPath(root string) string { return filepath.Join(root, "control.sock") }

// The largest set and the largest numbers that are accepted.
const (
	maxWanted   = 64
	maxReplicas = 1 << 10
)

// gpuName matches the UUID of a whole GPU. A UUID becomes a directory name, so anything else is refused.
var gpuName = regexp.MustCompile(`^GPU-[0-9A-Za-z-]{1,64}$`)

// checked validates the set and returns it sorted by UUID.
func checked(set []Wanted) ([]Wanted, error) {
	if len(set) > maxWanted {
		return nil, fmt.Errorf("%d daemons are wanted, at most %d are supported", len(set), maxWanted)
	}
	set = slices.SortedFunc(slices.Values(set), func(a, b Wanted) int { return cmp.Compare(a.GPU, b.GPU) })
	for i, w := range set {
		switch {
		case !gpuName.MatchString(string(w.GPU)):
			return nil, fmt.Errorf("%q is not the UUID of a whole GPU; MPS runs on whole GPUs (GPU-...), not on MIG devices", w.GPU)
		case i > 0 && set[i-1].GPU == w.GPU:
			return nil, fmt.Errorf("%s is wanted twice; a GPU has one daemon, so name it once", w.GPU)
		case w.Index < 0:
			return nil, fmt.Errorf("%s: index is %d, must be 0 or more", w.GPU, w.Index)
		case w.Replicas < 1 || w.Replicas > maxReplicas:
			return nil, fmt.Errorf("%s: replicas is %d, must be 1 to %d", w.GPU, w.Replicas, maxReplicas)
		case w.ActiveThreadPercentage < 1 || w.ActiveThreadPercentage > 100:
			return nil, fmt.Errorf("%s: activeThreadPercentage is %d, must be 1 to 100", w.GPU, w.ActiveThreadPercentage)
		case w.PinnedMemoryMiB != NoLimit && (w.PinnedMemoryMiB < 1 || w.PinnedMemoryMiB > gpu.MaxMPSMemoryMiB):
			return nil, fmt.Errorf("%s: pinnedMemoryMiB is %d, must be 1 to %d, or %d for no limit", w.GPU,
				w.PinnedMemoryMiB, gpu.MaxMPSMemoryMiB, NoLimit)
		}
	}
	return set, nil
}
