package sim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// kernelLine returns the kernel log's record of an event in the format of /dev/kmsg, or false for an event that is not
// logged. As on real hardware, it does not name the MIG instance.
func kernelLine(hw *hardware, e event) (string, bool) {
	text := ""
	switch e.Type {
	case eventXID, eventLogXID:
		at := slices.IndexFunc(hw.GPUs, func(c gpuHardware) bool { return c.UUID == e.GPU })
		if at < 0 {
			return "", false
		}
		bus, _, _ := bytes.Cut([]byte(hw.GPUs[at].PCI), []byte("."))
		text = fmt.Sprintf("NVRM: Xid (PCI:%s): %d, pid='<unknown>', name=<unknown>, injected", bus, e.XID)
	case eventLog:
		text = e.Note
	default:
		return "", false
	}
	return fmt.Sprintf("4,%d,%d,-;%s\n", e.Seq, e.Time.UnixMicro(), text), true
}

// appendKernelLog appends the lines that the kernel log does not contain yet. The file only grows, because readers
// follow it by offset. The caller holds the lock.
func appendKernelLog(root string, hw *hardware, outbox []event) error {
	path := filepath.Join(root, kmsgFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write kernel log: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("open kernel log: %w", err)
	}
	defer file.Close()
	end, line, err := lastLine(file)
	if err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	var lines bytes.Buffer
	for _, e := range outbox {
		if text, ok := kernelLine(hw, e); ok && e.Seq > sequence(line) {
			lines.WriteString(text)
		}
	}
	if lines.Len() == 0 {
		return nil
	}
	if err := file.Truncate(end); err != nil {
		return fmt.Errorf("repair kernel log: %w", err)
	}
	if _, err := file.WriteAt(lines.Bytes(), end); err != nil {
		return fmt.Errorf("append to kernel log: %w", err)
	}
	return nil
}

// sequence returns the sequence number of a record, or 0 if the line is not a record.
func sequence(line []byte) uint64 {
	fields := bytes.SplitN(line, []byte(","), 3)
	if len(fields) < 3 {
		return 0
	}
	number, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// kernelLogBehind reports whether lines of the last change are missing from the kernel log, as after a crash.
func kernelLogBehind(root string, hw *hardware, st *state) bool {
	last := uint64(0)
	for _, e := range st.Outbox {
		if _, ok := kernelLine(hw, e); ok {
			last = e.Seq
		}
	}
	if last == 0 {
		return false
	}
	file, err := os.Open(filepath.Join(root, kmsgFile))
	if err != nil {
		return true
	}
	defer file.Close()
	_, line, err := lastLine(file)
	return err != nil || sequence(line) < last
}
