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
	if err := build(folder, "driver"); err != nil {
		return sim.Files{}, err
	}
	return sim.FindFiles(folder)
}

func build(folder, what string) error {
	root, err := repository()
	if err != nil {
		return fmt.Errorf("build simulated driver: %w", err)
	}
	command := exec.Command(filepath.Join(root, "hack", "build.sh"), what)
	command.Env = append(os.Environ(), "BIN="+folder)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build simulated driver: %w\n%s", err, out)
	}
	return nil
}

// CreateComputing creates a machine in a folder below dir whose driver has a libcuda.so.1 with code and no other file with code. Its
// device nodes are empty files, which need no permission.
func CreateComputing(dir, profile string) (*sim.Machine, error) {
	if err := build(dir, "libcuda"); err != nil {
		return nil, err
	}
	library := filepath.Join(dir, "libcuda.so.1")
	machine, err := sim.CreateWith(filepath.Join(dir, "machine"), profile, sim.Options{
		Seed: "test", NoDeviceNodes: true, Files: sim.Files{Library: library, Programs: library, CUDA: library},
	})
	if err != nil {
		return nil, err
	}
	shown, err := machine.Show()
	if err != nil {
		return nil, err
	}
	nodes := []string{"nvidiactl", "nvidia-uvm"}
	for _, gpu := range shown.GPUs {
		nodes = append(nodes, fmt.Sprintf("nvidia%d", gpu.Minor))
	}
	for _, node := range nodes {
		if err := os.WriteFile(filepath.Join(machine.Root(), "dev", node), nil, 0o600); err != nil {
			return nil, fmt.Errorf("make device node: %w", err)
		}
	}
	return machine, nil
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
