package statefile

import (
	"fmt"
	"os"
	"strings"
)

// BootID returns the ID of the machine's present boot, for File.BootID.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
