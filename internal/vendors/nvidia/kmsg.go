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

	"github.com/berth-gpu/berth/internal/gpu"
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
	// xid or sxid is the code; an SXID is only reported when it was fatal.
	xid, sxid uint64
	detail    string
}

// The forms of the driver's lines. The word PCI: is missing in some drivers, and so is the function of the address.
var (
	xidLine  = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+)(?:,\s*(.*))?`)
	sxidLine = regexp.MustCompile(`nvidia-nvswitch[0-9]+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+),\s*(.*)`)
	offLine  = regexp.MustCompile(`NVRM: (?:The NVIDIA )?GPU(?: at PCI:)? ?([0-9a-fA-F]+:[0-9a-fA-F:.]+)`)
)

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
	if strings.Contains(text, "fallen off the bus") {
		if found := offLine.FindStringSubmatch(text); found != nil {
			return noticeOf(strings.TrimRight(found[1], ":."), strconv.Itoa(xidFallenOff), "fallen off the bus", false)
		}
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
	told := notice{pci: pci, detail: printable(detail)}
	if nvswitch {
		told.sxid = number
	} else {
		told.xid = number
	}
	return told, true
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

// recordText takes the text out of a line of /dev/kmsg, "priority,sequence,microseconds,flags;text";
// false for a line that continues the record before it.
func recordText(line string) (string, bool) {
	if strings.HasPrefix(line, " ") {
		return "", false
	}
	prefix, text, ok := strings.Cut(line, ";")
	if !ok || strings.Count(prefix, ",") < 3 {
		return line, line != ""
	}
	return text, true
}

// kernelLog reads /dev/kmsg from the moment of its first use on, without ever waiting for it.
type kernelLog struct {
	dev  tree
	log  *slog.Logger
	file *os.File
	// tail is the beginning of a line whose end is not written yet.
	tail []byte
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
		if text, ok := recordText(string(line)); ok {
			if told, ok := parseNotice(text); ok {
				take(told)
			}
		}
		k.tail = rest
	}
	if len(k.tail) > maxRecord {
		k.tail = nil
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
