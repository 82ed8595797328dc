package mps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/gpu"
)

// Step names a moment at which the supervisor may die.
type Step string

// The steps, each right after what it names. StateWritten comes twice in the start of a daemon: before
// anything is changed, and once the process is known.
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
	// fileVersion is the format of both files.
	fileVersion = 1
	// maxFile bounds what is read of them, and a request.
	maxFile = 1 << 20
)

// wantedFile is wanted.json.
type wantedFile struct {
	Version int `json:"version"`
	// Generation counts the sets that were wanted.
	Generation int64    `json:"generation"`
	Wanted     []Wanted `json:"wanted"`
}

// record is the journal of one GPU. It exists from before the first change to after the last.
type record struct {
	Version int `json:"version"`
	// Wanted is what was started last; it stands in for a lost wanted.json.
	Wanted Wanted `json:"wanted"`
	// PreviousMode is the compute mode before ours.
	PreviousMode int `json:"previousComputeMode"`
	// PID and StartTime (clock ticks since boot) name the daemon; zero while none was started.
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"startTime,omitempty"`
}

// errCorrupt marks a file whose content makes no sense.
var errCorrupt = errors.New("corrupt")

// readJSON reads a file strictly; the error is fs.ErrNotExist, errCorrupt, or that of the disk.
func readJSON(path string, into any) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return err
	}
	if len(content) > maxFile {
		return fmt.Errorf("read %s: %w: more than %d bytes", path, errCorrupt, maxFile)
	}
	if err := decode(content, into); err != nil {
		return fmt.Errorf("read %s: %w: %w", path, errCorrupt, err)
	}
	return nil
}

// decode takes one JSON value with no unknown field and nothing behind it.
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

// writeJSON replaces a file, so that readers see the old content or the new.
func writeJSON(path string, value any) error {
	content, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := renameio.WriteFile(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// setAside keeps a file that makes no sense for whoever wants to know.
func setAside(path string) error { return os.Rename(path, path+".bak") }

func readWanted(root string) (wantedFile, error) {
	var file wantedFile
	path := filepath.Join(root, wantedName)
	if err := readJSON(path, &file); err != nil {
		return wantedFile{}, err
	}
	if file.Version != fileVersion {
		return wantedFile{}, fmt.Errorf("read %s: %w: version %d, want %d", path, errCorrupt, file.Version, fileVersion)
	}
	set, err := checked(file.Wanted)
	if err != nil {
		return wantedFile{}, fmt.Errorf("read %s: %w: %w", path, errCorrupt, err)
	}
	file.Wanted = set
	return file, nil
}

func recordPath(root string, id gpu.UUID) string {
	return filepath.Join(root, string(id), recordName)
}

// readRecord returns nil without an error when there is none.
func readRecord(root string, id gpu.UUID) (*record, error) {
	var r record
	path := recordPath(root, id)
	err := readJSON(path, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if r.Version != fileVersion || r.Wanted.GPU != id {
		return nil, fmt.Errorf("read %s: %w: version %d for %q, want version %d for %q", path, errCorrupt, r.Version, r.Wanted.GPU, fileVersion, id)
	}
	if _, err := checked([]Wanted{r.Wanted}); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, errCorrupt, err)
	}
	return &r, nil
}

// cards lists the GPUs that have a folder below root, in order.
func cards(root string) ([]gpu.UUID, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", root, err)
	}
	var ids []gpu.UUID
	for _, e := range entries {
		if e.IsDir() && cardName.MatchString(e.Name()) {
			ids = append(ids, gpu.UUID(e.Name()))
		}
	}
	return ids, nil
}
