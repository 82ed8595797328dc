package tools

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// The exit codes of nvidia-smi (its manual page, RETURN VALUE).
const (
	exitOK           = 0
	exitUsage        = 2
	exitNotSupported = 3
	exitNotFound     = 6
	exitNoDriver     = 9
	exitLost         = 15
	exitOther        = 255
)

// smi is one run of nvidia-smi.
type smi struct {
	machine *sim.Machine
	shown   sim.Description
	out     io.Writer
}

// SMI is nvidia-smi on the machine whose file tree has that root. It supports -L, compute-policy (--set-timeslice,
// --list) and --gpu-reset. It prints everything to stdout, including errors, as nvidia-smi does, and returns the exit
// code.
func SMI(root string, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	machine, err := sim.OpenRoot(root)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitOther
	}
	shown, err := machine.Show()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitOther
	}
	if !shown.DriverLoaded {
		fmt.Fprintln(stdout, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "+
			"Make sure that the latest NVIDIA driver is installed and running.")
		return exitNoDriver
	}
	s := &smi{machine: machine, shown: shown, out: stdout}
	options, ok := parseSMI(args)
	switch {
	case !ok:
		return s.usage()
	case options.list:
		return s.list()
	case options.reset:
		return s.on(options.ids, s.reset)
	case options.policies:
		return s.on(options.ids, s.policies)
	case options.slice >= 0:
		return s.on(options.ids, func(gpus []sim.GPUDescription) int { return s.setTimeSlice(gpus, options.slice) })
	}
	return s.usage()
}

// smiOptions are the parsed arguments: exactly one of list, reset, policies and slice is set.
type smiOptions struct {
	list     bool
	reset    bool
	policies bool
	// slice is negative when none is given; an empty ids means every GPU.
	slice int
	ids   []string
}

// parseSMI parses the arguments. It returns false for arguments that nvidia-smi or this simulation does not accept.
func parseSMI(args []string) (smiOptions, bool) {
	options := smiOptions{slice: -1}
	compute := len(args) > 0 && args[0] == "compute-policy"
	if compute {
		args = args[1:]
	}
	asked := 0
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		takesValue := name == "-i" || name == "--id" || compute && name == "--set-timeslice"
		if takesValue && !given {
			if len(args) == 0 {
				return options, false
			}
			value, args = args[0], args[1:]
		}
		if given && !takesValue {
			return options, false
		}
		switch {
		case name == "-i" || name == "--id":
			options.ids = strings.Split(value, ",")
			continue
		case compute && name == "--set-timeslice":
			slice, err := strconv.Atoi(value)
			if err != nil || slice < 0 || slice >= len(sim.TimeSlices()) {
				return options, false
			}
			options.slice = slice
		case compute && (name == "-l" || name == "--list"):
			options.policies = true
		case !compute && (name == "-L" || name == "--list-gpus"):
			options.list = true
		case !compute && (name == "-r" || name == "--gpu-reset"):
			options.reset = true
		default:
			return options, false
		}
		asked++
	}
	return options, asked == 1
}

func (s *smi) usage() int {
	fmt.Fprintln(s.out, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
	return exitUsage
}

// present returns the GPUs that the driver enumerates.
func (s *smi) present() []sim.GPUDescription {
	return slices.DeleteFunc(slices.Clone(s.shown.GPUs), func(g sim.GPUDescription) bool { return g.Index < 0 })
}

// on calls f with the GPUs of those IDs (index, UUID or PCI bus ID), in NVML's order.
func (s *smi) on(ids []string, f func([]sim.GPUDescription) int) int {
	gpus := s.present()
	if len(ids) > 0 {
		for _, id := range ids {
			if !slices.ContainsFunc(gpus, func(g sim.GPUDescription) bool { return named(g, id) }) {
				fmt.Fprintln(s.out, "No devices were found")
				return exitNotFound
			}
		}
		gpus = slices.DeleteFunc(gpus, func(g sim.GPUDescription) bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return named(g, id) })
		})
	}
	if len(gpus) == 0 {
		fmt.Fprintln(s.out, "No devices were found")
		return exitNotFound
	}
	return f(gpus)
}

func named(g sim.GPUDescription, id string) bool {
	return id == strconv.Itoa(g.Index) || id == g.UUID || strings.EqualFold(id, g.PCIBusID) || strings.EqualFold(id, busID(g.PCIBusID))
}

// busID formats a bus ID as nvidia-smi does: eight domain digits, upper case.
func busID(kernel string) string { return "0000" + strings.ToUpper(kernel) }

func (s *smi) list() int {
	for _, g := range s.present() {
		fmt.Fprintf(s.out, "GPU %d: %s (UUID: %s)\n", g.Index, g.Product, g.UUID)
		for i, m := range g.MIGDevices {
			fmt.Fprintf(s.out, "  MIG %-11s Device %2d: (UUID: %s)\n", m.Profile, i, m.UUID)
		}
	}
	return exitOK
}

func (s *smi) policies(gpus []sim.GPUDescription) int {
	const rule = "+-------------------------------------+"
	fmt.Fprintln(s.out, rule)
	fmt.Fprintf(s.out, "| %-35s |\n", "GPU compute policies:")
	fmt.Fprintf(s.out, "| %-6s %-17s %-10s |\n", "GPU", "Name", "Value")
	fmt.Fprintln(s.out, "|=====================================|")
	for _, g := range gpus {
		value := g.TimeSlice
		if value == "" {
			value = sim.TimeSlices()[0]
		}
		fmt.Fprintf(s.out, "| %3d    %-17s %-10s |\n", g.Index, "Timeslice", value)
		fmt.Fprintln(s.out, rule)
	}
	return exitOK
}

func (s *smi) setTimeSlice(gpus []sim.GPUDescription, slice int) int {
	for _, g := range gpus {
		err := s.machine.SetTimeSlice(g.UUID, slice)
		if err != nil {
			return s.refused(g, "set timeslice", err)
		}
		fmt.Fprintf(s.out, "Timeslice set to %s for GPU %s.\n", sim.TimeSlices()[slice], busID(g.PCIBusID))
	}
	return exitOK
}

// refused prints why the request failed for one GPU.
func (s *smi) refused(g sim.GPUDescription, what string, err error) int {
	var ret nvml.Return
	if !errors.As(err, &ret) {
		fmt.Fprintln(s.out, err)
		return exitOther
	}
	if ret == nvml.ERROR_GPU_IS_LOST {
		fmt.Fprintf(s.out, "Unable to determine the device handle for GPU %s: GPU is lost.  Reboot the system to "+
			"recover this GPU\n", busID(g.PCIBusID))
		return exitLost
	}
	fmt.Fprintf(s.out, "Unable to %s for GPU %s: Not Supported\n", what, busID(g.PCIBusID))
	return exitNotSupported
}

func (s *smi) reset(gpus []sim.GPUDescription) int {
	uuids := make([]string, len(gpus))
	for i, g := range gpus {
		uuids[i] = g.UUID
	}
	err := s.machine.ResetGPUs(uuids...)
	var refusal *sim.ResetError
	switch {
	case errors.As(err, &refusal):
		return s.notReset(refusal)
	case err != nil:
		fmt.Fprintln(s.out, err)
		return exitOther
	}
	for _, g := range gpus {
		fmt.Fprintf(s.out, "GPU %s was successfully reset.\n", busID(g.PCIBusID))
	}
	fmt.Fprintln(s.out, "All done.")
	return exitOK
}

func (s *smi) notReset(refusal *sim.ResetError) int {
	fmt.Fprintln(s.out, "The following GPUs could not be reset:")
	used := 0
	for _, r := range refusal.Refused {
		reason := "GPU is lost"
		if r.Return == nvml.ERROR_IN_USE {
			reason = "In use by another client"
			used++
		}
		fmt.Fprintf(s.out, "  GPU %s: %s\n", busID(r.PCIBusID), reason)
	}
	if used > 0 {
		devices, these := "1 device is", "this device"
		if used > 1 {
			devices, these = fmt.Sprintf("%d devices are", used), "these devices"
		}
		fmt.Fprintf(s.out, "\n%s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "+
			"graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). "+
			"Please first kill all processes using %s and all compute applications running in the system.\n", devices, these)
	}
	return exitOther
}
