// Command program is nvidia-smi and nvidia-cuda-mps-control of a simulated machine, by the name that it is run by.
//
// It guarantees that it is static, so that it runs with the machine's file tree as its root, and that it acts on the
// machine in whose tree it lies, wherever that is mounted. In a container that has the program without its machine it
// fails and says so.
//
// It must not import anything of Berth but internal/hardware/sim.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

func main() {
	root := machineRoot()
	switch name := filepath.Base(os.Args[0]); name {
	case "nvidia-smi":
		os.Exit(tools.SMI(root, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	case "nvidia-cuda-mps-control":
		os.Exit(tools.MPSControl(root, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	default:
		fmt.Fprintf(os.Stderr, "%s: the simulated driver has no such program\n", name)
		os.Exit(1)
	}
}

// machineRoot is the root of the file tree that this program is in. In a chroot without /proc it is the root itself.
func machineRoot() string {
	if file, err := os.Executable(); err == nil {
		if root, ok := sim.RootOf(file); ok {
			return root
		}
	}
	return "/"
}
