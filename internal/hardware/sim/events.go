package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// event is one line of events.log. typeOf says which events reach NVML's event sets; the others document what was done
// to the machine.
type event struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Type string    `json:"type"`
	GPU  string    `json:"gpu,omitempty"`
	XID  uint64    `json:"xid,omitempty"`
	// GI and CI are the MIG instance that the event concerns; nil for the whole GPU.
	GI   *uint32 `json:"gi,omitempty"`
	CI   *uint32 `json:"ci,omitempty"`
	Note string  `json:"note,omitempty"`
}

// The types of events.
const (
	eventXID       = "xid"
	eventLogXID    = "logXid"
	eventLog       = "log"
	eventDoubleBit = "doubleBitECC"
	eventMIG       = "mig"
	eventReset     = "reset"
	eventSetting   = "setting"
	eventInject    = "inject"
	eventClear     = "clear"
)

// maxLine bounds a line of the event log.
const maxLine = 8 << 10

// logEnd returns the offset after the last complete line.
func logEnd(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	end, _, err := lastLine(file)
	return end, err
}

// lastLine returns the last complete line and the offset after it.
func lastLine(file *os.File) (end int64, line []byte, err error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, nil, err
	}
	from := max(0, size-2*maxLine)
	tail := make([]byte, size-from)
	if _, err := file.ReadAt(tail, from); err != nil && !errors.Is(err, io.EOF) {
		return 0, nil, err
	}
	last := bytes.LastIndexByte(tail, '\n')
	if last < 0 {
		return from, nil, nil
	}
	before := bytes.LastIndexByte(tail[:last], '\n')
	return from + int64(last) + 1, tail[before+1 : last], nil
}

// queued is an event with the offset after it in the log.
type queued struct {
	event event
	end   int64
}

// readEvents reads the complete lines from an offset on, and returns where it stopped. It skips lines that are not
// events.
func readEvents(path string, offset int64) ([]queued, int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, offset, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, offset, err
	}
	return parseEvents(file, offset)
}

func parseEvents(from io.Reader, offset int64) ([]queued, int64, error) {
	var events []queued
	reader := bufio.NewReaderSize(from, maxLine)
	var skipped int64 // bytes of a line that is longer than any event
	for {
		line, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			skipped += int64(len(line))
			continue
		}
		if errors.Is(err, io.EOF) {
			return events, offset, nil // an incomplete line is read by the next call
		}
		if err != nil {
			return events, offset, err
		}
		offset += skipped + int64(len(line))
		var e event
		if skipped == 0 && json.Unmarshal(line, &e) == nil && e.Seq > 0 {
			events = append(events, queued{event: e, end: offset})
		}
		skipped = 0
	}
}

// appendEvents appends the events that the log does not contain yet, and removes an incomplete line that a crash has
// left. The caller holds the lock.
func appendEvents(root string, outbox []event) error {
	file, err := os.OpenFile(filepath.Join(root, eventsFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("open event log: %w", err)
	}
	defer file.Close()
	end, line, err := lastLine(file)
	if err != nil {
		return fmt.Errorf("read event log: %w", err)
	}
	var last event
	_ = json.Unmarshal(line, &last) // without events, Seq is 0
	var text bytes.Buffer
	for _, e := range outbox {
		if e.Seq <= last.Seq {
			continue
		}
		encoded, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		text.Write(append(encoded, '\n'))
	}
	if err := file.Truncate(end); err != nil {
		return fmt.Errorf("repair event log: %w", err)
	}
	if _, err := file.WriteAt(text.Bytes(), end); err != nil {
		return fmt.Errorf("append to event log: %w", err)
	}
	return nil
}

// logBehind reports whether events of the last change are missing from the log, as after a crash.
func logBehind(root string, st *state) bool {
	if len(st.Outbox) == 0 {
		return false
	}
	file, err := os.Open(filepath.Join(root, eventsFile))
	if err != nil {
		return true
	}
	defer file.Close()
	_, line, err := lastLine(file)
	var last event
	return err != nil || json.Unmarshal(line, &last) != nil || last.Seq < st.Seq
}
