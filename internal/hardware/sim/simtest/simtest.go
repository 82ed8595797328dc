// Package simtest lets a test use a simulated machine: within its own process, with NVML through the simulator and the driver's programs as
// runs of the test binary, or with the driver's files, which it builds.
//
// It guarantees that no file of the driver has to be built for the former. Only tests may import it; it must not import anything of
// Berth but internal/hardware/sim.
package simtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

const command = "simulated-program"

// The programs of the driver.
const (
	smi        = "nvidia-smi"
	mpsControl = "nvidia-cuda-mps-control"
)

// Main runs a program of the driver and ends the process if that is what the test binary was started for. TestMain calls it first.
func Main() {
	if len(os.Args) < 4 || os.Args[1] != command {
		return
	}
	switch root, args := os.Args[3], os.Args[4:]; os.Args[2] {
	case smi:
		os.Exit(tools.SMI(root, args, os.Stdin, os.Stdout, os.Stderr))
	case mpsControl:
		os.Exit(tools.MPSControl(root, args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(2)
}

// SMI returns the command line that is nvidia-smi of a machine.
func SMI(m *sim.Machine) []string { return program(m, smi) }

// MPSControl returns the command line that is nvidia-cuda-mps-control of a machine.
func MPSControl(m *sim.Machine) []string { return program(m, mpsControl) }

func program(m *sim.Machine, name string) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, command, name, m.Root()}
}

// BuildDriver builds the driver's files into a folder, as "make build" does.
func BuildDriver(folder string) (sim.Files, error) {
	root, err := repository()
	if err != nil {
		return sim.Files{}, fmt.Errorf("build simulated driver: %w", err)
	}
	command := exec.Command(filepath.Join(root, "hack", "build.sh"), "driver")
	command.Env = append(os.Environ(), "BIN="+folder)
	if out, err := command.CombinedOutput(); err != nil {
		return sim.Files{}, fmt.Errorf("build simulated driver: %w\n%s", err, out)
	}
	return sim.FindFiles(folder)
}

// repository returns the root of the repository that a test runs in.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "build.sh")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("the test does not run in a repository with hack/build.sh")
}
