package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bootIDFile is where the kernel shows a UUID that it makes at each boot.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// BootID returns the ID of the machine's present boot, for File.BootID. It is the one that the kubelet reads: that of the host's /proc
// beneath hostRoot, where the host's root file system is mounted. Without a /proc there, it is read from this process's, which has the same
// kernel.
func BootID(hostRoot string) (string, error) {
	id, err := os.ReadFile(filepath.Join(hostRoot, bootIDFile))
	if errors.Is(err, fs.ErrNotExist) {
		id, err = os.ReadFile(bootIDFile)
	}
	if err != nil {
		return "", fmt.Errorf("read boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
