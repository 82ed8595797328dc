package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
)

// RootsBelow returns the roots of a simulated machine (berth sim create DIR): the file tree DIR/root holds a driver, device nodes, the
// kernel's file systems and the kernel log.
func RootsBelow(dir string) (Roots, error) {
	root := filepath.Join(dir, "root")
	proc := filepath.Join(root, "proc")
	if _, err := os.Stat(proc); err != nil {
		return Roots{}, fmt.Errorf("%s has no simulated machine; create one with: berth sim create %s --profile a100x8-40g", dir, dir)
	}
	return Roots{Driver: root, Dev: root, Proc: proc, Sys: filepath.Join(root, "sys")}, nil
}
