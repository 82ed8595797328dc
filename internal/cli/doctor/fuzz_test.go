package doctor

import (
	"strings"
	"testing"
)

func FuzzModuleVersion(f *testing.F) {
	f.Add([]byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n"))
	f.Add([]byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version:  gcc 9.3.0\n"))
	f.Add([]byte("\n1.2"))
	f.Fuzz(func(t *testing.T, content []byte) {
		version := moduleVersion(content)
		first, _, _ := strings.Cut(string(content), "\n")
		if !strings.Contains(first, version) {
			t.Errorf("version %q is not in the first line %q", version, first)
		}
	})
}

func TestModuleVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n":                      "580.95.05",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version: 9.3.0\n": "470.57.02",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  550.1  Tue\n":                                                 "550.1",
		"\nGCC version: 9.3.0\n": "",
	} {
		if got := moduleVersion([]byte(text)); got != want {
			t.Errorf("moduleVersion(%q) = %q, want %q", text, got, want)
		}
	}
}
