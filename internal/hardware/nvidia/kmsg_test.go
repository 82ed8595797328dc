package nvidia

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestParseNotice(t *testing.T) {
	at := func(bus uint8) gpu.PCIAddress { return gpu.PCIAddress{Bus: bus} }
	for name, test := range map[string]struct {
		line string
		want notice
		ok   bool
	}{
		"xid": {"NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
			notice{pci: at(0x1b), code: gpu.XID(79), detail: "pid=1234, name=python, GPU has fallen off the bus."}, true},
		"a reset":             {"nvidia 0000:1b:00.0: reset done", notice{pci: at(0x1b), reset: true}, true},
		"a reset, unbound":    {"pci 0000:1b:00.0: reset done", notice{pci: at(0x1b), reset: true}, true},
		"another one's reset": {"vfio-pci 0000:1b:00.0: reset done", notice{}, false},
		"a quoted reset":      {"process 'nvidia 0000:1b:00.0: reset done", notice{}, false},
		"more than a reset":   {"nvidia 0000:1b:00.0: reset done (comm)", notice{}, false},
		"with the function":   {"NVRM: Xid (PCI:0000:1b:00.0): 62, text", notice{pci: at(0x1b), code: gpu.XID(62), detail: "text"}, true},
		"without PCI":         {"NVRM: Xid (0000:1b:00): 119", notice{pci: at(0x1b), code: gpu.XID(119)}, true},
		"long domain":         {"NVRM: Xid (PCI:00000000:1B:00): 31, pid='<unknown>'", notice{pci: at(0x1b), code: gpu.XID(31), detail: "pid='<unknown>'"}, true},
		"after other words":   {line: "[  12.5] NVRM: Xid (PCI:0000:1b:00): 48, x"},
		"a name of 15 bytes":  {line: "NVRM: GPU0:07:0[77]: segfault at 0 ip 0 sp 0 error 6 in GPU has fallen off the bus"},
		"a MIG instance":      {"NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, x", notice{pci: at(0x1b), code: gpu.XID(94), detail: "x"}, true},
		"XID of four digits":  {line: "NVRM: Xid (PCI:0000:1b:00): 1079, x"},
		"no comma":            {line: "NVRM: Xid (PCI:0000:1b:00): 79 x"},
		"fell off":            {"NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", notice{pci: at(0x1b), code: gpu.XID(79), detail: "fallen off the bus"}, true},
		"fell off, long form": {"NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:20b0) has fallen off the bus and is not responding to commands.", notice{pci: at(0x1b), code: gpu.XID(79), detail: "fallen off the bus"}, true},
		"fell off, PCI form":  {"NVRM: GPU at PCI:0000:1b:00: has fallen off the bus", notice{pci: at(0x1b), code: gpu.XID(79), detail: "fallen off the bus"}, true},
		"fatal SXID":          {"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", notice{pci: at(0xc1), code: gpu.SXID(20034), detail: "Fatal, Link 30 LTSSM Fault Up"}, true},
		"SXID that is not":    {line: "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress"},
		"address of nothing":  {line: "NVRM: Xid (PCI:zz): 79, x"},
		"XID 0":               {line: "NVRM: Xid (PCI:0000:1b:00): 0, x"},
		"no number":           {line: "NVRM: Xid (PCI:0000:1b:00): many"},
		"huge number":         {line: "NVRM: Xid (PCI:0000:1b:00): 99999999999999999999"},
		"another driver":      {line: "mlx5_core 0000:1b:00.0: fallen off the bus"},
		"nothing":             {line: ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseNotice(test.line)
			if ok != test.ok || got != test.want {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

func TestRecordText(t *testing.T) {
	for name, test := range map[string]struct {
		line string
		want string
		ok   bool
	}{
		"record":        {"4,1234,98765,-;NVRM: Xid", "NVRM: Xid", true},
		"with caller":   {"4,1234,98765,-,caller=T1;text; more", "text; more", true},
		"continuation":  {" SUBSYSTEM=pci", "", false},
		"text only":     {"NVRM: x; y", " y", false},
		"a program's":   {"11,1234,98765,-;NVRM: Xid", "NVRM: Xid", false},
		"no priority":   {"x,1234,98765,-;NVRM: Xid", "NVRM: Xid", false},
		"nothing":       {"", "", false},
		"semicolon off": {"4,1;x", "x", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, ok := recordText(test.line)
			if ok && got != test.want || ok != test.ok {
				t.Errorf("got %q, %v; want %q, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

func FuzzParseNotice(f *testing.F) {
	f.Add("4,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1")
	f.Add("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.")
	f.Add("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, \xff\x00")
	f.Fuzz(func(t *testing.T, line string) {
		text, _, ok := recordText(line)
		if !ok {
			return
		}
		n, ok := parseNotice(text)
		if !ok {
			return
		}
		if n.code.IsZero() != n.reset {
			t.Errorf("%q: %+v is neither an error code nor a reset", line, n)
		}
		if len(n.detail) > maxDetail || !utf8.ValidString(n.detail) || strings.ContainsAny(n.detail, "\n\r\x00\x1b") {
			t.Errorf("%q: detail %q is not fit to print", line, n.detail)
		}
	})
}

// TestKernelLogIsReadFromNow reads a log in pieces, as it is written.
func TestKernelLogIsReadFromNow(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, kmsgFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	var said []string
	emit := func(n notice) { said = append(said, fmt.Sprint(n.code.Number)) }
	k := kernelLog{dev: tree{root}, log: slog.New(slog.DiscardHandler)}
	k.drain(emit) // there is no log yet
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	line := func(xid int) string {
		return fmt.Sprintf("4,%d,1,-;NVRM: Xid (PCI:0000:1b:00): %d, x\n KEY=value\n", xid, xid)
	}
	write(line(10))
	k.drain(emit)
	defer k.close()
	write(line(11) + line(12) + line(13)[:20])
	k.drain(emit)
	write(line(13)[20:])
	k.drain(emit)
	k.drain(emit)
	write(strings.Repeat("x", 3*maxRecord) + "\n" + line(14))
	k.drain(emit)
	if diff := cmp.Diff([]string{"11", "12", "13", "14"}, said); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
