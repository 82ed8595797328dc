package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindFiles: an error names the file that is missing or another one, and the fix.
func TestFindFiles(t *testing.T) {
	const library, programs = "libnvidia-ml.so.1", "berth-sim-tools"
	elf := string(sharedObject(library))
	tests := map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing":                     {nil, []string{library, "there is no"}},
		"no CUDA":                     {map[string]string{library: elf, programs: elf}, []string{"libcuda.so.1", "there is no"}},
		"no programs":                 {map[string]string{library: elf}, []string{programs, "there is no"}},
		"a library that is a text":    {map[string]string{library: "hello", programs: elf, "libcuda.so.1": elf}, []string{library, "no ELF file"}},
		"a library of something else": {map[string]string{library: elf, programs: elf, "libcuda.so.1": elf}, []string{library, "nvmlInit_v2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range test.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := FindFiles(dir)
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range append(test.want, "build it with: make build") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want it with %q", err, part)
				}
			}
		})
	}
}

// TestDrivers: each version lacks what the later ones have, and the newest lacks what came after it.
func TestDrivers(t *testing.T) {
	all := releases()
	for i, r := range all {
		if len(r.Without) == 0 {
			t.Errorf("driver %s lacks nothing", r.Version)
		}
		if i > 0 && len(r.Without) <= len(all[i-1].Without) {
			t.Errorf("driver %s lacks %d functions, and the later %s %d", r.Version, len(r.Without), all[i-1].Version, len(all[i-1].Without))
		}
	}
	if got := symbolsAfter(13040); len(got) != 0 {
		t.Errorf("the newest header lacks %q", got)
	}
}
