package nvidia

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/safetext"
)

const (
	// kmsgFile is the kernel log, below the root that holds dev.
	kmsgFile = "dev/kmsg"
	// maxRecord bounds one record of the log. Those of the kernel are shorter.
	maxRecord = 8 << 10
	// maxDrain bounds the reads between two waits for NVML's events.
	maxDrain = 512
	// maxPast bounds how often that many are read of the past: more than a million records, which are more than any kernel keeps.
	maxPast = 4096
	// maxDetail bounds what is kept of a line.
	maxDetail = 200
)

// notice is a report about a GPU or an NVSwitch in a line of the kernel log.
type notice struct {
	pci gpu.PCIAddress
	// code is an XID, or the SXID of a fatal error.
	code gpu.Code
	// reset is true when the GPU was reset.
	reset  bool
	detail string
	// record is the number of the record plus one.
	record uint64
}

// The forms of the driver's lines, matched from the first byte: lines of the kernel quote text that users choose, such as the
// name of a program, and some begin with the first 15 bytes of a program's name. Some drivers leave out the word PCI: and the
// function of the address; a line of a MIG instance names it after the address.
var (
	xidLine  = regexp.MustCompile(`^NVRM: Xid \((?:PCI:)?` + pciPattern + `(?: GPU-I:[0-9a-fA-F]+)?\): ([0-9]{1,3})(?:$|,\s*(?s:(.*))$)`)
	sxidLine = regexp.MustCompile(`^nvidia-nvswitch[0-9]+: SXid \((?:PCI:)?` + pciPattern + `\): ([0-9]{1,5}),\s*(?s:(.*))$`)
	offLine  = regexp.MustCompile(`^NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?` + pciPattern + `[^0-9a-fA-F](?s:.*)fallen off the bus`)
	// resetLine matches what the kernel's PCI core writes when a device was reset, after the name of its driver or of its bus.
	resetLine = regexp.MustCompile(`^(?:nvidia|pci) ` + pciPattern + `: reset done$`)
)

// pciPattern matches an address. It is longer than what fits into the 15 bytes of a program's name behind the beginning of a
// line.
const pciPattern = `([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)`

// xidFallenOff is the code of a GPU that has fallen off the bus.
const xidFallenOff = 79

// parseNotice parses the text of one line; false when it is not a report of a fault or a reset.
func parseNotice(text string) (notice, bool) {
	if found := xidLine.FindStringSubmatch(text); found != nil {
		return noticeOf(found[1], found[2], found[3], false)
	}
	if found := sxidLine.FindStringSubmatch(text); found != nil {
		if !strings.HasPrefix(found[3], "Fatal") {
			return notice{}, false
		}
		return noticeOf(found[1], found[2], found[3], true)
	}
	if found := offLine.FindStringSubmatch(text); found != nil {
		return noticeOf(found[1], strconv.Itoa(xidFallenOff), "fallen off the bus", false)
	}
	if found := resetLine.FindStringSubmatch(text); found != nil {
		pci, err := gpu.ParsePCIAddress(found[1])
		return notice{pci: pci, reset: true}, err == nil
	}
	return notice{}, false
}

func noticeOf(address, code, detail string, nvswitch bool) (notice, bool) {
	if !strings.Contains(address, ".") {
		address += ".0"
	}
	pci, err := gpu.ParsePCIAddress(address)
	if err != nil {
		return notice{}, false
	}
	number, err := strconv.ParseUint(code, 10, 32)
	if err != nil || number == 0 {
		return notice{}, false
	}
	found := notice{pci: pci, code: gpu.XID(number), detail: safetext.First(safetext.Line(detail), maxDetail)}
	if nvswitch {
		found.code = gpu.SXID(number)
	}
	return found, true
}

// recordText returns the text of a line of /dev/kmsg, "priority,sequence,microseconds,flags;text", and its sequence number plus one, which
// is 0 for a line that continues a record. It is false for such a line, and for a record that the kernel did not write: those of programs
// have another facility, which is the priority without its three lowest bits.
func recordText(line string) (text string, record uint64, ok bool) {
	prefix, text, ok := strings.Cut(line, ";")
	fields := strings.Split(prefix, ",")
	if !ok || len(fields) < 4 {
		return "", 0, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 16)
	sequence, unnumbered := strconv.ParseUint(fields[1], 10, 63)
	if err != nil || unnumbered != nil {
		return "", 0, false
	}
	return text, sequence + 1, priority>>3 == 0
}

// kernelLog reads what is written to /dev/kmsg after it was opened. It never blocks.
type kernelLog struct {
	dev tree
	// past is true to begin with the oldest line that the kernel still has. With a number in after, what is not newer than that record is
	// left out instead; it is that of the last record that was read.
	past  bool
	after atomic.Uint64
	log   *slog.Logger
	file  *os.File
	// tail is the beginning of an incomplete line; skip is true while that line is longer than any record.
	tail []byte
	skip bool
	// lastError is the last error that was logged.
	lastError string
}

// open opens the log, without past and after at its end: earlier lines report faults that scans find, or that were repaired.
func (k *kernelLog) open() bool {
	if k.file != nil {
		return true
	}
	file, err := openInRoot(k.dev.root, kmsgFile)
	if err == nil && !k.past && k.after.Load() == 0 {
		_, err = file.Seek(0, io.SeekEnd)
		if err != nil {
			file.Close()
		}
	}
	if err != nil {
		if text := err.Error(); text != k.lastError {
			k.lastError = text
			k.log.Warn("Could not open the kernel log; XIDs that NVML does not report are missed",
				"error", err, "fix", "mount /dev/kmsg into this container and give it CAP_SYSLOG")
		}
		return false
	}
	k.file, k.lastError = file, ""
	return true
}

func (k *kernelLog) close() {
	if k.file != nil {
		k.file.Close()
		k.file = nil
	}
}

// drain passes on the notices that were written since the last call. It returns whether there may be more.
func (k *kernelLog) drain(emit func(notice)) (more bool) {
	if !k.open() {
		return false
	}
	buffer := make([]byte, maxRecord)
	for range maxDrain {
		n, err := k.read(buffer)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // records were overwritten before they were read
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return false
		case err != nil:
			k.log.Warn("Could not read the kernel log; opening it again", "error", err)
			k.close()
			return false
		}
		k.lines(buffer[:n], emit)
	}
	return true
}

// lines passes on the notices in the complete lines of what was read.
func (k *kernelLog) lines(chunk []byte, emit func(notice)) {
	k.tail = append(k.tail, chunk...)
	for {
		line, rest, ok := bytes.Cut(k.tail, []byte("\n"))
		if !ok {
			break
		}
		if !k.skip {
			k.line(string(line), emit)
		}
		k.tail, k.skip = rest, false
	}
	if len(k.tail) > maxRecord {
		k.tail, k.skip = nil, true
	}
}

// line passes on the notice in a line, unless it was passed on before.
func (k *kernelLog) line(line string, emit func(notice)) {
	text, record, ok := recordText(line)
	if record == 0 || record <= k.after.Load() {
		return
	}
	k.after.Store(record)
	if n, is := parseNotice(text); ok && is {
		n.record = record
		emit(n)
	}
}

// read makes one read that does not block.
func (k *kernelLog) read(buffer []byte) (n int, err error) {
	raw, err := k.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	if control := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buffer) }); control != nil {
		return 0, control
	}
	return n, err
}

// openInRoot opens a file below a root for reads that do not block.
func openInRoot(root, name string) (*os.File, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
}
