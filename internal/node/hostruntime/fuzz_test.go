package hostruntime

import (
	"strings"
	"testing"
)

// FuzzVersion checks that any answer is read to its end.
func FuzzVersion(f *testing.F) {
	f.Add([]byte("\x0a\x011\x12\x0acontainerd\x1a\x06v2.1.4"))
	f.Add([]byte{0x1a, 0xff})
	f.Fuzz(func(t *testing.T, blob []byte) {
		if name, version := parseVersion(blob); len(name)+len(version) > len(blob) {
			t.Errorf("%q and %q are longer than the answer", name, version)
		}
	})
}

// FuzzArguments checks that flags are read from any file of arguments.
func FuzzArguments(f *testing.F) {
	f.Add("--root-dir=${SNAP_COMMON}/var/lib/kubelet\n# x\n--a\n")
	f.Add("--root-dir\n/x")
	f.Fuzz(func(t *testing.T, text string) {
		list := snapArguments(text, "/var/snap/microk8s/1")
		if value, set := flag(list, rootFlag); set && value != "" && !strings.Contains(strings.Join(list, "\n"), value) {
			t.Errorf("%q is not in the arguments", value)
		}
	})
}
