package statefile

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBootID checks that it is one line, that every process reads the same, and that the host's /proc has precedence.
func TestBootID(t *testing.T) {
	kernel, err := exec.Command("cat", bootIDFile).Output()
	if err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, filepath.Dir(bootIDFile)), 0o755); err != nil {
		t.Fatal(err)
	}
	const id = "0e1b9c7e-3a1c-4a5e-9b0a-d7a1f4f0c001"
	if err := os.WriteFile(filepath.Join(host, bootIDFile), []byte(id+"\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	own := strings.TrimSuffix(string(kernel), "\n")
	for name, tc := range map[string]struct{ hostRoot, want string }{
		"on the host":            {"/", own},
		"no host root":           {"", own},
		"in a container":         {host, id},
		"a host without a /proc": {t.TempDir(), own},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := BootID(tc.hostRoot); err != nil || got != tc.want || len(got) != 36 {
				t.Errorf("boot ID %q, want %q: %v", got, tc.want, err)
			}
		})
	}
}
