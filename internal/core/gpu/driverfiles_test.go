package gpu

import (
	"regexp"
	"strings"
	"testing"
)

func TestModuleVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n":                      "580.95.05",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version: 9.3.0\n": "470.57.02",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  550.1  Tue\n":                                                 "550.1",
		"NVRM version: NVIDIA UNIX Kernel Module  580.65.06.01":                                                         "580.65.06.01",
		"NVRM version: NVIDIA UNIX Kernel Module for x86_64.1  580.95.05\r\n":                                           "580.95.05",
		"6.8.5\n":        "6.8.5",
		"version: 580\n": "",
		"version: v580.95 580.95-test 1.2.x .1\n": "",
		"\nGCC version: 9.3.0\n":                  "",
		"hello":                                   "",
		"":                                        "",
	} {
		if got := ModuleVersion(text); got != want {
			t.Errorf("ModuleVersion(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzModuleVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n")
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version:  gcc 9.3.0\n")
	f.Add("\n1.2")
	f.Add("1.2")
	version := regexp.MustCompile(`^\d+(\.\d+)+$`)
	f.Fuzz(func(t *testing.T, text string) {
		got := ModuleVersion(text)
		first, _, _ := strings.Cut(text, "\n")
		if got != "" && (!version.MatchString(got) || !strings.Contains(first, got)) {
			t.Errorf("%q is no version in the first line %q", got, first)
		}
		if again := ModuleVersion(first); again != got {
			t.Errorf("the first line alone has %q, the text %q", again, got)
		}
	})
}
