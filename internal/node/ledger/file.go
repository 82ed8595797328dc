package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Version is the format of the file that this code writes.
const Version = 1

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
type versionError struct{ version int }

func (e *versionError) Error() string {
	return fmt.Sprintf("format version %d is newer than %d, which is the newest that this agent supports", e.version, Version)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFile appends the file's content to buf. Lines of records that have not
// changed are reused, so that a change costs one encoding however much is held.
func appendFile(buf []byte, bootID string, order []gpu.DeviceKey, records map[gpu.DeviceKey]*record) ([]byte, error) {
	header, err := json.Marshal(fileHeader{Format: fileMagic, Version: Version, BootID: bootID})
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

// parseFile reads a file's content. The error is *versionError, *corruptError, or errOtherBoot.
func parseFile(blob []byte, bootID string) ([]Holding, error) {
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
	case header.Version > Version:
		return nil, &versionError{version: header.Version}
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
	return parseHoldings(lines[1 : len(lines)-1])
}

func parseHoldings(lines [][]byte) ([]Holding, error) {
	holdings := make([]Holding, 0, len(lines))
	for i, line := range lines {
		var h Holding
		if err := json.Unmarshal(line, &h); err != nil {
			return nil, &corruptError{line: i + 2, why: err.Error()}
		}
		switch h.Holder.Kind {
		case gpu.HolderPod, gpu.HolderClaim, gpu.HolderMaintenance, gpu.HolderOrphan:
		default:
			return nil, &corruptError{line: i + 2, why: fmt.Sprintf("kind %q", h.Holder.Kind)}
		}
		if h.Key.GPU == "" || h.Key.Share < 0 || i > 0 && gpu.CompareKeys(holdings[i-1].Key, h.Key) >= 0 {
			return nil, &corruptError{line: i + 2, why: fmt.Sprintf("key %q is out of order", h.Key)}
		}
		holdings = append(holdings, h)
	}
	return holdings, nil
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
	holdings, err := parseFile(blob, l.deps.BootID)
	if err != nil {
		return func() error { return l.setAside(err) }, nil
	}
	return func() error {
		l.merge(holdings)
		return nil
	}, nil
}

// merge replaces the state by what another agent wrote. It keeps the grants to pods that this agent has made since,
// which only the kubelet has besides.
func (l *Ledger) merge(holdings []Holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var pending []Holding
	for _, key := range l.order {
		if h := l.records[key].Holding; h.Pending {
			pending = append(pending, h)
		}
	}
	l.records, l.order, l.looked = map[gpu.DeviceKey]*record{}, nil, time.Time{}
	for _, h := range holdings {
		l.put(h)
	}
	l.written = l.edits
	for _, h := range pending {
		if r := l.records[h.Key]; r == nil || r.Holder.OfPod() && r.Since.Before(h.Since) {
			l.put(h)
		}
	}
	l.publish()
}

// setAside renames an invalid file. The state in memory is not changed.
func (l *Ledger) setAside(cause error) error {
	if errors.Is(cause, errOtherBoot) {
		l.deps.Log.Info("Started with an empty ledger", "why", cause)
		return nil
	}
	code, verb := "LEDGER_CORRUPT", "was kept"
	if _, newer := errors.AsType[*versionError](cause); newer {
		code = "LEDGER_VERSION"
	}
	// A follower leaves the file to its writer.
	if l.store.leads() {
		if err := l.store.keep(); err != nil {
			if code == "LEDGER_VERSION" {
				return fmt.Errorf("%w; it was not overwritten, and could not be renamed to %s: %w", cause, l.store.bakPath(), err)
			}
			verb = "could not be kept (" + err.Error() + ")"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault(code, fmt.Sprintf("%s: %v. It %s as %s. Berth starts without it; devices in use are read from the kubelet's checkpoint and the running containers.",
		l.deps.Path, cause, verb, l.store.bakPath()))
	return nil
}

// save writes the file if this ledger is the writer. It is called without the mutex. A failure is a fault until a later
// save succeeds; being superseded is an error, but not a fault.
func (l *Ledger) save() error {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	edits := l.edits
	if !l.store.leads() {
		l.written = edits
		l.mu.Unlock()
		return nil
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
