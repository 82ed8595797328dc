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

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// kmsgFile is the kernel's log, beneath the root that holds dev.
	kmsgFile = "dev/kmsg"
	// maxRecord bounds one record of the log: the kernel's own are shorter.
	maxRecord = 8 << 10
	// maxDrain bounds the reads between two looks at NVML's events.
	maxDrain = 512
	// maxDetail bounds what is kept of a line.
	maxDetail = 200
)

// notice is what a line of the kernel's log says of a GPU or an NVSwitch.
type notice struct {
	pci gpu.PCIAddress
	// code is an XID, or the SXID of a fatal error.
	code gpu.Code
	// reset tells that the GPU was reset.
	reset  bool
	detail string
}

// The forms of the driver's lines, from their first byte: the kernel quotes what users choose, such as the name of a program, in
// lines of its own, and begins some of them with the first 15 bytes of a program's name. The word PCI: is missing in some
// drivers, and so is the function of the address; a line of a MIG instance names it after the address.
var (
	xidLine  = regexp.MustCompile(`^NVRM: Xid \((?:PCI:)?` + pciPattern + `(?: GPU-I:[0-9a-fA-F]+)?\): ([0-9]{1,3})(?:$|,\s*(?s:(.*))$)`)
	sxidLine = regexp.MustCompile(`^nvidia-nvswitch[0-9]+: SXid \((?:PCI:)?` + pciPattern + `\): ([0-9]{1,5}),\s*(?s:(.*))$`)
	offLine  = regexp.MustCompile(`^NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?` + pciPattern + `[^0-9a-fA-F](?s:.*)fallen off the bus`)
	// resetLine is what the kernel's PCI core writes when a device was reset, after the name of its driver or of its bus.
	resetLine = regexp.MustCompile(`^(?:nvidia|pci) ` + pciPattern + `: reset done$`)
)

// pciPattern is an address. It alone is longer than what a program's name leaves of its 15 bytes.
const pciPattern = `([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)`

// xidFallenOff is the code of a GPU that has fallen off the bus.
const xidFallenOff = 79

// parseNotice reads the text of one line; false when it is no report of a fault.
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
	found := notice{pci: pci, code: gpu.XID(number), detail: printable(detail)}
	if nvswitch {
		found.code = gpu.SXID(number)
	}
	return found, true
}

// printable cuts a text short and keeps what can be shown.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			return -1
		}
		return r
	}, strings.TrimSpace(text))
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "")
	}
	return text
}

// recordText takes the text out of a line of /dev/kmsg, "priority,sequence,microseconds,flags;text"; false for a line that
// continues the record before it, and for a record that is not the kernel's own: one that a program wrote has another
// facility, which is the priority without its three lowest bits.
func recordText(line string) (string, bool) {
	prefix, text, ok := strings.Cut(line, ";")
	fields := strings.Split(prefix, ",")
	if !ok || len(fields) < 4 {
		return "", false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 16)
	return text, err == nil && priority>>3 == 0
}

// kernelLog reads /dev/kmsg from the moment of its first use on, without ever waiting for it.
type kernelLog struct {
	dev  tree
	log  *slog.Logger
	file *os.File
	// tail is the beginning of a line whose end is not written yet; skip is true while that line is longer than any record.
	tail []byte
	skip bool
	// told is the last trouble that was logged.
	told string
}

// open opens the log at its end: what it said before is of faults that scans find, or that are long repaired.
func (k *kernelLog) open() bool {
	if k.file != nil {
		return true
	}
	file, err := openInRoot(k.dev.root, kmsgFile)
	if err == nil {
		_, err = file.Seek(0, io.SeekEnd)
		if err != nil {
			file.Close()
		}
	}
	if err != nil {
		if text := err.Error(); text != k.told {
			k.told = text
			k.log.Warn("the kernel's log cannot be read; XIDs that NVML does not report are not seen",
				"error", err, "fix", "mount /dev/kmsg into this container and give it CAP_SYSLOG")
		}
		return false
	}
	k.file, k.told = file, ""
	return true
}

func (k *kernelLog) close() {
	if k.file != nil {
		k.file.Close()
		k.file = nil
	}
}

// drain hands over what was written since the last time.
func (k *kernelLog) drain(take func(notice)) {
	if !k.open() {
		return
	}
	buffer := make([]byte, maxRecord)
	for range maxDrain {
		n, err := k.read(buffer)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // records were overwritten before they were read; the next one is there
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return
		case err != nil:
			k.log.Warn("the kernel's log cannot be read any more, it is opened anew", "error", err)
			k.close()
			return
		}
		k.lines(buffer[:n], take)
	}
}

// lines takes the whole lines out of what was read.
func (k *kernelLog) lines(chunk []byte, take func(notice)) {
	k.tail = append(k.tail, chunk...)
	for {
		line, rest, ok := bytes.Cut(k.tail, []byte("\n"))
		if !ok {
			break
		}
		if text, ok := recordText(string(line)); ok && !k.skip {
			if told, ok := parseNotice(text); ok {
				take(told)
			}
		}
		k.tail, k.skip = rest, false
	}
	if len(k.tail) > maxRecord {
		k.tail, k.skip = nil, true
	}
}

// read makes one read that does not wait.
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

// openInRoot opens a file beneath a root for reads that do not wait.
func openInRoot(root, name string) (*os.File, error) {
	folder, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return folder.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
}
