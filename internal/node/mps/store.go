package mps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// Step names a point at which tests let the supervisor fail or end.
type Step string

// The steps, each directly after the action that it names. StateWritten is reached twice during the start of a daemon:
// before anything is changed, and when the process is known.
const (
	WantedWritten Step = "WantedWritten"
	StateWritten  Step = "StateWritten"
	ModeSet       Step = "ModeSet"
	DaemonStarted Step = "DaemonStarted"
	LimitsSet     Step = "LimitsSet"
	Quit          Step = "Quit"
	ModeRestored  Step = "ModeRestored"
	Removed       Step = "Removed"
)

const (
	wantedName = "wanted.json"
	recordName = "state.json"
	// fileVersion is the format version of both files.
	fileVersion = 1
	// maxFile bounds both files and a request, in bytes.
	maxFile = 1 << 20
)

// wantedFile is the content of wanted.json.
type wantedFile struct {
	// Generation counts the wanted sets.
	Generation int64    `json:"generation"`
	Wanted     []Wanted `json:"wanted"`
}

// record is the journal of one GPU, the content of state.json. It exists from before the first change until after the
// last.
type record struct {
	// Wanted is what was started last; it replaces a lost wanted.json.
	Wanted Wanted `json:"wanted"`
	// PreviousMode is the compute mode before MPS.
	PreviousMode int `json:"previousComputeMode"`
	// PID and StartTime (clock ticks since boot) identify the daemon; both are zero before it was started.
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"startTime,omitempty"`
}

// wantedIn returns the file wanted.json. It is not bound to a boot: a set is in force until the agent sends another.
func wantedIn(root string) statefile.File[wantedFile] {
	return statefile.File[wantedFile]{
		Path: filepath.Join(root, wantedName), What: "which MPS daemons are wanted", Format: "berth-mps-wanted", Version: fileVersion, Max: maxFile,
		Check: func(file wantedFile) error {
			_, err := checked(file.Wanted)
			return err
		},
	}
}

// recordOf returns the journal of a GPU. It is not bound to a boot, because a process is adopted only if its
// environment has the mark too.
func recordOf(root string, id gpu.UUID) statefile.File[record] {
	return statefile.File[record]{
		Path: filepath.Join(root, string(id),
			recordName), What: "the journal of MPS on " + string(id), Format: "berth-mps-gpu", Version: fileVersion, Max: maxFile,
		Check: func(r record) error {
			if r.Wanted.GPU != id {
				return fmt.Errorf("it belongs to GPU %q", r.Wanted.GPU)
			}
			_, err := checked([]Wanted{r.Wanted})
			return err
		},
	}
}

// decode parses exactly one JSON value without unknown fields.
func decode(content []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

// listGPUs lists the GPUs that have a directory below root, sorted.
func listGPUs(root string) ([]gpu.UUID, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", root, err)
	}
	var ids []gpu.UUID
	for _, e := range entries {
		if e.IsDir() && gpuName.MatchString(e.Name()) {
			ids = append(ids, gpu.UUID(e.Name()))
		}
	}
	return ids, nil
}
