// Package simcmd provides the commands of berth sim, which create, break, repair and show simulated machines.
//
// It guarantees that everything it prints to out is either a table for people or a versioned object. It must not import
// any package of Berth but internal/hardware/sim.
package simcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// NewCommand returns berth sim with its subcommands. Tables and objects go to out, notes to errOut; files finds the driver
// that a machine gets.
func NewCommand(out, errOut io.Writer, files func() (sim.Files, error)) *cobra.Command {
	command := &cobra.Command{
		Use:   "sim",
		Short: "Create simulated GPU machines and inject faults",
		Long: `Create simulated GPU machines and inject faults.

A simulated machine is a directory. DIR/root has the files of a driver, with a libnvidia-ml.so.1 that
every program can open, device nodes, /proc, /sys and the kernel log. --sim DIR of berth and
berth-agent uses them in place of this host's. A fault is visible as on real hardware, in every
process that uses the directory.`,
		Example: `  berth sim create /tmp/node --profile a100x8-40g
  berth-agent inspect gpus --sim /tmp/node
  berth sim inject /tmp/node --gpu 3 --xid 79
  berth sim clear /tmp/node --gpu 3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	command.SetOut(out)
	command.SetErr(errOut)
	command.AddCommand(newCreate(out, files), newInject(out), newClear(out), newReboot(out), newUpgrade(out, files), newWork(out), newShow(out), newProfiles(out))
	return command
}

func newProfiles(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:     "profiles",
		Short:   "List the machines that can be simulated",
		Example: "  berth sim profiles",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PROFILE\tMACHINE")
			for _, name := range sim.Profiles() {
				title, err := sim.Title(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(w, "%s\t%s\n", name, title)
			}
			return w.Flush()
		},
	}
}

func newCreate(out io.Writer, files func() (sim.Files, error)) *cobra.Command {
	var profile string
	var options sim.Options
	command := &cobra.Command{
		Use:   "create DIR --profile PROFILE",
		Short: "Create a machine in an empty or new directory",
		Long: `Create a machine in an empty or new directory. A directory that already has a machine of this
profile is not changed.

It installs a driver below DIR/root: libnvidia-ml.so.1, libcuda.so.1, nvidia-smi and
nvidia-cuda-mps-control, which "make build" puts beside berth as libnvidia-ml.so.1, libcuda.so.1 and
berth-sim-tools. libcuda.so.1 computes nothing: it checks that the calls of berth-agent validate come
in CUDA's order.

As root (CAP_MKNOD) it also creates device nodes, with numbers that no driver of this host uses.
Without them everything else works, and "berth sim show" reports it.`,
		Example: `  berth sim create /tmp/node1 --profile h100x8
  berth sim create /tmp/node2 --profile v100x8-hybrid-mesh --seed rack1-node2
  berth sim create /tmp/node3 --profile h100x8 --clique 7f3c1ab2-5d6e-4c91-9a44-3b0e6f2d8c57.1`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if profile == "" {
				return fmt.Errorf("--profile is missing: want one of %s", strings.Join(sim.Profiles(), ", "))
			}
			var err error
			if options.Files, err = files(); err != nil {
				return err
			}
			machine, err := sim.CreateWith(args[0], profile, options)
			if err != nil {
				return err
			}
			return printTable(out, machine)
		},
	}
	flags := command.Flags()
	flags.StringVar(&profile, "profile", "", "the machine to simulate (berth sim profiles lists them)")
	flags.StringVar(&options.Seed, "seed", "", "the seed of UUIDs and serial numbers (default: the path of the directory)")
	flags.StringVar(&options.Driver, "driver", "", "the version of the driver: "+strings.Join(sim.Drivers(), ", ")+" (default: the first)")
	flags.StringVar(&options.Clique, "clique", "",
		"the NVLink fabric of several nodes that the GPUs have joined, as CLUSTER-UUID.CLIQUE-ID (default: the profile's)")
	flags.BoolVar(&options.NoDeviceNodes, "no-device-nodes", false, "create no device nodes")
	return command
}

func newInject(out io.Writer) *cobra.Command {
	var fault sim.Fault
	var hang, transient string
	var links []string
	command := &cobra.Command{
		Use:   "inject DIR --gpu N|UUID FAULT...",
		Short: "Inject faults into a GPU or the driver",
		Long: `Inject faults into a GPU or the driver. Faults accumulate until "berth sim clear".

The GPU is a slot number (the NVML index while no GPU is removed), a UUID, a PCI bus ID, or,
for --xid and --busy, the UUID of a MIG device.`,
		Example: `  berth sim inject /tmp/node1 --gpu 3 --xid 79
  berth sim inject /tmp/node1 --gpu GPU-5f1c0e6a-9a40-8a0c-4f7d-0d6a2c6b1e55 --lost-silently
  berth sim inject /tmp/node1 --gpu 0 --hang GetTemperature=30s
  berth sim inject /tmp/node1 --gpu 0 --transient GetMigMode=1 --error UNKNOWN
  berth sim inject /tmp/node1 --transient DeviceGetCount=2 --error TIMEOUT
  berth sim inject /tmp/node1 --gpu 0 --nvlink-down 2,5
  berth sim inject /tmp/node1 --gpu 0 --xid 119 --log-only
  berth sim inject /tmp/node1 --gpu 0 --xid 119 --recovery gpu-reset --recovery-after 135s
  berth sim inject /tmp/node1 --gpu 0 --throttle thermal --recovery drain-p2p
  berth sim inject /tmp/node1 --cuda cuInit=999
  berth sim inject /tmp/node1 --gpu 3 --cuda wrong
  berth sim inject /tmp/node1 --driver-gone`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := parseHang(hang, &fault); err != nil {
				return err
			}
			if err := parseTransient(transient, &fault); err != nil {
				return err
			}
			if err := parseLinks(links, &fault); err != nil {
				return err
			}
			if fault.GPU == "" && !fault.DriverGone && fault.Transient.Call == "" && fault.CUDA == "" {
				return errors.New("--gpu is missing: want a number, a UUID or a PCI bus ID (berth sim show DIR lists them)")
			}
			machine, err := sim.Open(args[0])
			if err != nil {
				return err
			}
			if err := machine.Inject(fault); err != nil {
				return err
			}
			return printTable(out, machine)
		},
	}
	flags := command.Flags()
	flags.StringVar(&fault.GPU, "gpu", "", "the GPU: slot number, UUID or PCI bus ID")
	flags.Uint64Var(&fault.XID, "xid", 0, "report this XID (94 also counts a contained error); the driver reports a recovery action only with --recovery")
	flags.BoolVar(&fault.LogOnly, "log-only", false, "report the XID only in the kernel log")
	flags.StringVar(&fault.Log, "log", "", "write this line to the kernel log")
	flags.BoolVar(&fault.Lost, "lost", false, "the GPU is lost, with XID 79")
	flags.BoolVar(&fault.LostSilently, "lost-silently", false, "the GPU is lost, without any event")
	flags.BoolVar(&fault.OffBus, "off-bus", false, "the GPU has fallen off the bus: lost, and PCI config space reads as ones")
	flags.Uint64Var(&fault.ECC, "ecc", 0, "this number of double-bit ECC errors in DRAM, with XID 48")
	flags.Uint64Var(&fault.ECCSRAM, "ecc-sram", 0, "this number of uncorrectable ECC errors in SRAM, with XID 48")
	flags.IntVar(&fault.Temperature, "temperature", 0, "temperature in degrees Celsius")
	flags.StringVar(&fault.RowRemap, "row-remap", "", "row remapping that is pending (XID 63) or failed (XID 64)")
	flags.StringSliceVar(&links, "nvlink-down", nil, "the numbers of NVLinks that are down, or all (XID 74)")
	flags.Uint64Var(&fault.NVLinkErrors, "nvlink-errors", 0, "this number of additional replays on the NVLinks")
	flags.BoolVar(&fault.RetiredPages, "retired-pages", false, "a memory page is pending retirement (GPUs before Ampere)")
	flags.StringVar(&fault.Throttle, "throttle", "", "the hardware reduces the clocks: "+sim.ThrottleHW+", "+sim.ThrottleThermal+" or "+sim.ThrottlePowerBrake)
	flags.StringVar(&fault.Fabric, "fabric", "", "registration with the NVLink fabric: "+sim.FabricNotStarted+", "+sim.FabricInProgress+" or "+sim.FabricFailed)
	flags.StringVar(&fault.Recovery, "recovery", "", "the recovery action that the driver reports, regardless of the fault: "+strings.Join(sim.RecoveryActions(), ", ")+"; or "+sim.RecoveryUnsupported+" for a driver without this query")
	flags.DurationVar(&fault.RecoveryAfter, "recovery-after", 0, "how long the driver reports none before it reports the action of --recovery")
	flags.BoolVar(&fault.Busy, "busy", false, "a process uses the GPU, or the MIG device")
	flags.StringVar(&hang, "hang", "", "CALL or CALL=DURATION: an NVML call that hangs until it is cleared, or takes this long; \"all\" for all calls of the GPU")
	flags.StringVar(&transient, "transient", "", "CALL or CALL=TIMES: an NVML call that fails this often in each process, or until it is cleared, with --error; \"all\" for all calls of the GPU; without --gpu a call of the library such as DeviceGetCount")
	flags.StringVar(&fault.Transient.Error, "error", "UNKNOWN", "the error of a call of --transient: "+strings.Join(sim.TransientErrors(), ", "))
	flags.IntVar(&fault.Transient.Skip, "after", 0, "the number of calls of --transient that succeed before the first one fails")
	flags.StringVar(&fault.CUDA, "cuda", "", "a fault of libcuda.so.1, of all GPUs or with --gpu of one: CALL=RESULT such as cuInit=999, wrong (a wrong sum) or hang=CALL; without --gpu also count=-1 (one device fewer), major=N (the kernel module has another version) or missing")
	flags.BoolVar(&fault.Remove, "remove", false, "remove the GPU from the running machine")
	flags.BoolVar(&fault.DriverGone, "driver-gone", false, "unload the driver")
	return command
}

// parseHang parses CALL[=DURATION].
func parseHang(text string, fault *sim.Fault) error {
	if text == "" {
		return nil
	}
	call, duration, timed := strings.Cut(text, "=")
	fault.Hang = call
	if !timed {
		return nil
	}
	parsed, err := time.ParseDuration(duration)
	if err != nil || parsed <= 0 {
		return fmt.Errorf("--hang %s: %q is not a duration; write for example %s=30s, or %s to hang until cleared", text, duration, call, call)
	}
	fault.HangFor = parsed
	return nil
}

// parseTransient parses CALL[=TIMES].
func parseTransient(text string, fault *sim.Fault) error {
	if text == "" {
		return nil
	}
	call, times, counted := strings.Cut(text, "=")
	fault.Transient.Call = call
	if !counted {
		return nil
	}
	parsed, err := strconv.Atoi(times)
	if err != nil || parsed <= 0 {
		return fmt.Errorf("--transient %s: %q is not a number; write for example %s=1, or %s to fail until cleared", text, times, call, call)
	}
	fault.Transient.Times = parsed
	return nil
}

func parseLinks(links []string, fault *sim.Fault) error {
	if slices.Equal(links, []string{"all"}) {
		fault.AllNVLinksDown = true
		return nil
	}
	for _, text := range links {
		number, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("--nvlink-down %s: want numbers of links, such as 0 or 2,5, or all", text)
		}
		fault.NVLinksDown = append(fault.NVLinksDown, number)
	}
	return nil
}

func newClear(out io.Writer) *cobra.Command {
	var gpu string
	command := &cobra.Command{
		Use:   "clear DIR --gpu N|UUID|all|driver",
		Short: "Remove the faults of a GPU, of all GPUs, or of the driver",
		Long: `Remove the faults of a GPU, of all GPUs, or of the driver: counters are reset to zero, a removed
GPU is present again, and the driver is loaded again, with its libcuda (with all or driver). MIG
layouts are kept.`,
		Example: `  berth sim clear /tmp/node1 --gpu 3
  berth sim clear /tmp/node1 --gpu all`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if gpu == "" {
				return errors.New("--gpu is missing: want a number, a UUID, a PCI bus ID, all, or driver")
			}
			machine, err := sim.Open(args[0])
			if err != nil {
				return err
			}
			if err := machine.Clear(gpu); err != nil {
				return err
			}
			return printTable(out, machine)
		},
	}
	command.Flags().StringVar(&gpu, "gpu", "", "the GPU: slot number, UUID or PCI bus ID; or all, or driver")
	return command
}

func newReboot(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "reboot DIR",
		Short: "Reboot the machine",
		Long: `Reboot the machine: the driver is loaded again and faults are removed, except rows that could not
be remapped and GPUs that were removed. MIG devices and settings are lost.`,
		Example: "  berth sim reboot /tmp/node1",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			machine, err := sim.Open(args[0])
			if err != nil {
				return err
			}
			if err := machine.Reboot(); err != nil {
				return err
			}
			return printTable(out, machine)
		},
	}
}

// BuiltFiles finds the files of the driver beside this program, where `make build` puts them.
func BuiltFiles() (sim.Files, error) {
	self, err := os.Executable()
	if err != nil {
		return sim.Files{}, fmt.Errorf("find the simulated driver: %w", err)
	}
	if target, err := filepath.EvalSymlinks(self); err == nil {
		self = target
	}
	return sim.FindFiles(filepath.Dir(self))
}

func newUpgrade(out io.Writer, files func() (sim.Files, error)) *cobra.Command {
	var driver string
	command := &cobra.Command{
		Use:   "upgrade DIR --driver VERSION",
		Short: "Install another driver",
		Long: `Install another driver, or the same one again: its files are replaced, and it is loaded again. A
process that has the old libnvidia-ml.so.1 open keeps it, and NVML returns LIB_RM_VERSION_MISMATCH
to it if the version is another.`,
		Example: "  berth sim upgrade /tmp/node1 --driver " + sim.Drivers()[1],
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if driver == "" {
				return fmt.Errorf("--driver is missing: want one of %s", strings.Join(sim.Drivers(), ", "))
			}
			machine, err := sim.Open(args[0])
			if err != nil {
				return err
			}
			installed, err := files()
			if err != nil {
				return err
			}
			if err := machine.UpgradeDriver(driver, installed); err != nil {
				return err
			}
			return printTable(out, machine)
		},
	}
	command.Flags().StringVar(&driver, "driver", "", "the version of the driver: "+strings.Join(sim.Drivers(), ", "))
	return command
}

func newShow(out io.Writer) *cobra.Command {
	var format string
	command := &cobra.Command{
		Use:   "show DIR",
		Short: "Show the GPUs, faults and topology of a machine",
		Example: `  berth sim show /tmp/node1
  berth sim show /tmp/node1 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if format != "table" && format != "json" {
				return fmt.Errorf("--output %s: want table or json", format)
			}
			machine, err := sim.Open(args[0])
			if err != nil {
				return err
			}
			if format == "table" {
				return printTable(out, machine)
			}
			description, err := machine.Show()
			if err != nil {
				return err
			}
			encoder := json.NewEncoder(out)
			encoder.SetIndent("", "  ")
			return encoder.Encode(description)
		},
	}
	command.Flags().StringVarP(&format, "output", "o", "table", "output format: table or json")
	return command
}

func printTable(out io.Writer, machine *sim.Machine) error {
	description, err := machine.Show()
	if err != nil {
		return err
	}
	return description.WriteTable(out)
}
