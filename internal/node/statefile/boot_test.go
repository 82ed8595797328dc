package statefile

import (
	"os/exec"
	"strings"
	"testing"
)

// TestBootID checks that it is one line, and that every process reads the same.
func TestBootID(t *testing.T) {
	id, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	other, err := exec.Command("cat", "/proc/sys/kernel/random/boot_id").Output()
	if err != nil || id != strings.TrimSuffix(string(other), "\n") || len(id) != 36 {
		t.Errorf("boot ID %q, want %q", id, other)
	}
}
