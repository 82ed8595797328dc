package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Version is the newest format of the file that this code reads and writes. A file has the lowest version that has a form
// for its content, so that an older agent can read it whenever that is possible; see the package comment.
const Version = 2

// versionPlaced is the first version with keys by placement.
const versionPlaced = 2

const (
	fileMagic = "berth-ledger"
	// maxFile bounds the file in bytes; 800 shares, all held, have about 300 KiB.
	maxFile = 16 << 20
)

type fileHeader struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
}

type fileTrailer struct {
	Holdings int    `json:"holdings"`
	CRC      uint32 `json:"crc32c"`
}

// corruptError means that the file is invalid, and has the position.
type corruptError struct {
	line int
	why  string
}

func (e *corruptError) Error() string { return fmt.Sprintf("corrupt in line %d: %s", e.line, e.why) }

// versionError means that a newer Berth wrote the file.
type versionError struct {
	version int
	newest  int
}

func (e *versionError) Error() string {
	return fmt.Sprintf("format version %d is newer than %d, which is the newest that this agent supports: install the version of Berth that wrote it, or a newer one", e.version, e.newest)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFile appends the file's content to buf. Lines of records that have not
// changed are reused, so that a change costs one encoding however much is held.
func appendFile(buf []byte, bootID string, order []gpu.DeviceKey, records map[gpu.DeviceKey]*record) ([]byte, error) {
	header, err := json.Marshal(fileHeader{Format: fileMagic, Version: versionOf(order), BootID: bootID})
	if err != nil {
		return nil, err
	}
	start := len(buf)
	buf = append(append(buf, header...), '\n')
	for _, key := range order {
		r := records[key]
		if r.line == nil {
			if r.line, err = json.Marshal(r.Holding); err != nil {
				return nil, err
			}
		}
		buf = append(append(buf, r.line...), '\n')
	}
	sum := crc32.Checksum(buf[start:], castagnoli)
	buf = append(buf, `{"holdings":`...)
	buf = strconv.AppendInt(buf, int64(len(order)), 10)
	buf = append(buf, `,"crc32c":`...)
	buf = strconv.AppendUint(buf, uint64(sum), 10)
	return append(buf, "}\n"...), nil
}

// versionOf returns the lowest version that has a form for the keys.
func versionOf(order []gpu.DeviceKey) int {
	if slices.ContainsFunc(order, func(key gpu.DeviceKey) bool { return key.Placement.Known() }) {
		return versionPlaced
	}
	return 1
}

// parseFile reads a file's content. The error is *versionError, *corruptError, or errOtherBoot.
func parseFile(blob []byte, bootID string) ([]Holding, error) {
	return parseFileUpTo(Version, blob, bootID)
}

// parseFileUpTo is parseFile of an agent whose newest version is given.
func parseFileUpTo(newest int, blob []byte, bootID string) ([]Holding, error) {
	if string(blob) == notRegular {
		return nil, &corruptError{line: 1, why: "it is " + notRegular}
	}
	lines := bytes.SplitAfter(blob, []byte("\n"))
	// The last element is the text after the last newline, which is empty in a complete file.
	if len(lines) < 3 || len(lines[len(lines)-1]) != 0 {
		return nil, &corruptError{line: len(lines), why: "the file ends in the middle"}
	}
	lines = lines[:len(lines)-1]
	var header fileHeader
	if err := json.Unmarshal(lines[0], &header); err != nil {
		return nil, &corruptError{line: 1, why: err.Error()}
	}
	switch {
	case header.Format != fileMagic:
		return nil, &corruptError{line: 1, why: "not a ledger"}
	case header.Version > newest:
		return nil, &versionError{version: header.Version, newest: newest}
	case header.Version < 1:
		return nil, &corruptError{line: 1, why: fmt.Sprintf("version %d", header.Version)}
	case header.BootID != bootID:
		return nil, errOtherBoot
	}
	last := lines[len(lines)-1]
	var trailer fileTrailer
	if err := json.Unmarshal(last, &trailer); err != nil {
		return nil, &corruptError{line: len(lines), why: err.Error()}
	}
	body := blob[:len(blob)-len(last)]
	if sum := crc32.Checksum(body, castagnoli); sum != trailer.CRC || trailer.Holdings != len(lines)-2 {
		return nil, &corruptError{line: len(lines), why: fmt.Sprintf("%d holdings with CRC %d, want %d with %d",
			len(lines)-2, sum, trailer.Holdings, trailer.CRC)}
	}
	return parseHoldings(header.Version, lines[1:len(lines)-1])
}

func parseHoldings(version int, lines [][]byte) ([]Holding, error) {
	holdings := make([]Holding, 0, len(lines))
	for i, line := range lines {
		var h Holding
		if err := json.Unmarshal(line, &h); err != nil {
			return nil, &corruptError{line: i + 2, why: err.Error()}
		}
		if why := h.fault(version); why != "" {
			return nil, &corruptError{line: i + 2, why: why}
		}
		if i > 0 && gpu.CompareKeys(holdings[i-1].Key, h.Key) >= 0 {
			return nil, &corruptError{line: i + 2, why: fmt.Sprintf("key %q is out of order", h.Key)}
		}
		holdings = append(holdings, h)
	}
	return holdings, nil
}

// fault returns what is wrong with a holding in a file of a version; empty when nothing is.
func (h *Holding) fault(version int) string {
	switch h.Holder.Kind {
	case gpu.HolderPod, gpu.HolderClaim, gpu.HolderMaintenance, gpu.HolderOrphan:
	default:
		return fmt.Sprintf("kind %q", h.Holder.Kind)
	}
	placed := h.Key.Placement.Known()
	switch {
	case !h.Key.Valid():
		return fmt.Sprintf("key %q identifies no device", h.Key)
	case placed && version < versionPlaced:
		return fmt.Sprintf("key %q has a placement, which version %d does not have", h.Key, version)
	case placed && h.Holder.OfPod():
		return fmt.Sprintf("key %q has a placement, and the kubelet knows no such device", h.Key)
	case h.Placement != gpu.Placement{} && !gpu.Placed(h.Key.GPU, h.Placement).Valid():
		return fmt.Sprintf("placement %s of key %q", h.Placement, h.Key)
	case !h.MPS.Valid():
		return fmt.Sprintf("key %q has the MPS limits %+v", h.Key, h.MPS)
	case slices.ContainsFunc(h.Pods, func(pod gpu.Pod) bool { return pod.UID == "" }):
		return fmt.Sprintf("key %q has a pod without a UID", h.Key)
	}
	return ""
}

var errOtherBoot = errors.New("the file is from before this boot")

// load reads the file and returns a function that puts its content in force. Until that is called, and when the file
// cannot be read, the state in memory is not changed. The caller holds the store's lock, not the mutex.
func (l *Ledger) load() (func() error, error) {
	blob, err := l.store.read()
	if err != nil {
		return nil, err
	}
	if blob == nil {
		return func() error { return nil }, nil
	}
	return l.inForce(blob), nil
}

// inForce reads the file's content and returns a function that puts it in force.
func (l *Ledger) inForce(blob []byte) func() error {
	holdings, err := parseFile(blob, l.deps.BootID)
	if err != nil {
		return func() error { return l.setAside(err) }
	}
	return func() error {
		l.merge(holdings)
		return nil
	}
}

// setAside renames an invalid file; a follower leaves it to the writer. The state in memory is not changed.
func (l *Ledger) setAside(cause error) error {
	if errors.Is(cause, errOtherBoot) {
		l.deps.Log.Info("Started with an empty ledger", "why", cause)
		return nil
	}
	code, place := "LEDGER_CORRUPT", "was kept as "+l.store.bakPath()
	if _, newer := errors.AsType[*versionError](cause); newer {
		code = "LEDGER_VERSION"
	}
	if !l.store.leads() {
		place = "is left to the agent that writes it"
	} else if err := l.store.keep(); err != nil {
		if code == "LEDGER_VERSION" {
			return fmt.Errorf("%w; it was not overwritten, and could not be renamed to %s: %w", cause, l.store.bakPath(), err)
		}
		place = "could not be kept (" + err.Error() + ") as " + l.store.bakPath()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault(code, fmt.Sprintf("%s: %v. It %s. Berth starts without it; devices in use are read from the kubelet's checkpoint and the running containers.",
		l.deps.Path, cause, place))
	return nil
}

// save writes the file if this ledger is the writer. It is called without the mutex. A failure is a fault until a later
// save succeeds; not being the writer is an error, but not a fault.
func (l *Ledger) save() error {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	edits := l.edits
	if err := l.refusal(); err != nil {
		l.written = edits
		l.mu.Unlock()
		return err
	}
	content, err := appendFile(l.store.buf[:0], l.deps.BootID, l.order, l.records)
	l.store.buf = content
	l.mu.Unlock()
	if err == nil {
		err = l.store.write(content)
	} else {
		err = fmt.Errorf("encode %s: %w", l.deps.Path, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, ErrSuperseded):
		l.written = edits
		l.deps.Log.Info("Stopped writing the ledger; a newer agent writes it")
		return err
	case err != nil:
		l.fault("LEDGER_UNWRITABLE", fmt.Sprintf("%v. Holdings are kept in memory; they are written when the disk can be written again.", err))
		return err
	}
	l.written = edits
	delete(l.faults, "LEDGER_UNWRITABLE")
	return nil
}
