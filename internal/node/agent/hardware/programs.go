package hardware

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
)

// The hidden commands of berth-agent that [Open] puts into the command lines of a [Machine].
const (
	// RootedCommand runs a program of a driver that is installed below another root.
	RootedCommand = "driver-program"
	// SimulatedCommand runs a program of the simulated driver; see [RunSimulated].
	SimulatedCommand = "simulated"
)

// The programs of the driver.
const (
	simulatedSMI = "nvidia-smi"
	mpsControl   = "nvidia-cuda-mps-control"
)

// RunSimulated runs a program of the simulated driver and returns its exit status. The arguments, which follow
// [SimulatedCommand] on the command line, are the program, the simulator's directory and the program's own.
func RunSimulated(args []string, in io.Reader, out, errOut io.Writer) (int, error) {
	if len(args) < 2 {
		return 0, fmt.Errorf("run simulated program: %d arguments, want the program and the simulator's directory", len(args))
	}
	program, dir, rest := args[0], args[1], args[2:]
	switch program {
	case simulatedSMI:
		return tools.SMI(filepath.Join(dir, "root"), rest, in, out, errOut), nil
	case mpsControl:
		return tools.MPSControl(filepath.Join(dir, "root"), rest, in, out, errOut), nil
	}
	return 0, fmt.Errorf("run simulated program: %q is not simulated; %s and %s are", program, simulatedSMI, mpsControl)
}
