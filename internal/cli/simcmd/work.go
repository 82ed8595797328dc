package simcmd

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

func newWork(out io.Writer) *cobra.Command {
	var gpu string
	var work sim.Work
	var programs []string
	command := &cobra.Command{
		Use:   "work DIR --gpu N|UUID [WORK...]",
		Short: "Set the load of a GPU",
		Long: `Set the load of a GPU: its utilization, power, traffic and processes. It replaces the load that
was set before; without any flag the GPU is idle. The load is kept until it is set again, or the
GPU is reset or cleared.`,
		Example: `  berth sim work /tmp/node1 --gpu 0 --sm 90 --memory 40 --power 600 --program 4711=20000
  berth sim work /tmp/node1 --gpu 1 --program 4712=4000@MIG-5f1c0e6a-9a40-8a0c-4f7d-0d6a2c6b1e55
  berth sim work /tmp/node1 --gpu 0`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if gpu == "" {
				return errors.New("--gpu is missing: want a number, a UUID or a PCI bus ID (berth sim show DIR lists them)")
			}
			for _, text := range programs {
				program, err := parseProgram(text)
				if err != nil {
					return err
				}
				work.Programs = append(work.Programs, program)
			}
			machine, err := sim.Open(args[0])
			if err != nil {
				return err
			}
			if err := machine.SetWork(gpu, work); err != nil {
				return err
			}
			return printTable(out, machine)
		},
	}
	flags := command.Flags()
	flags.StringVar(&gpu, "gpu", "", "the GPU: slot number, UUID or PCI bus ID")
	percentage := func(into *uint32, name, usage string) {
		flags.Var(&percent{into}, name, usage+", in percent")
	}
	percentage(&work.SM, "sm", "utilization of the multiprocessors")
	percentage(&work.Memory, "memory", "utilization of the memory")
	percentage(&work.Encoder, "encoder", "utilization of the video encoders")
	percentage(&work.Decoder, "decoder", "utilization of the video decoders")
	flags.Uint32Var(&work.PowerWatts, "power", 0, "power in watts (default: that of an idle GPU)")
	flags.Uint64Var(&work.Joules, "joules", 0, "energy since the driver was loaded, in joules")
	flags.Uint32Var(&work.PCIeKBps, "pcie", 0, "PCIe traffic in each direction, in KB/s")
	flags.Uint32Var(&work.PCIeReplays, "pcie-replays", 0, "PCIe replays since the driver was loaded")
	flags.Uint64Var(&work.NVLinkKiB, "nvlink", 0, "data that each NVLink has sent, and received, since the driver was loaded, in KiB")
	flags.Uint64Var(&work.ThrottledMillis, "throttled", 0,
		"how long the clocks were reduced because of power or temperature, in milliseconds")
	flags.StringArrayVar(&programs, "program", nil, "PID=MIB or PID=MIB@MIG-UUID: a process and its memory; may be repeated")
	return command
}

// percent is a flag with a value of 0 to 100.
type percent struct{ into *uint32 }

func (p *percent) String() string {
	if p.into == nil {
		return "0" // the flag package prints the zero value as the default
	}
	return strconv.FormatUint(uint64(*p.into), 10)
}

func (p *percent) Set(text string) error {
	value, err := strconv.ParseUint(text, 10, 32)
	if err != nil || value > 100 {
		return errors.New("want 0 to 100")
	}
	*p.into = uint32(value)
	return nil
}

func (p *percent) Type() string { return "percent" }

// parseProgram parses PID=MIB[@MIG-UUID].
func parseProgram(text string) (sim.Program, error) {
	amount, device, _ := strings.Cut(text, "@")
	number, memory, _ := strings.Cut(amount, "=")
	pid, err := strconv.ParseUint(number, 10, 31)
	mib, memoryErr := strconv.ParseUint(memory, 10, 32)
	if err != nil || memoryErr != nil || pid == 0 {
		return sim.Program{}, fmt.Errorf("--program %s: want PID=MIB, such as 4711=2000, or PID=MIB@MIG-UUID for a "+
			"process on a MIG device", text)
	}
	return sim.Program{PID: int(pid), MIG: device, MemoryMiB: mib}, nil
}
