package agent

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/hardware/sim/tools"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// The commands that are for other programs of Berth only.
const (
	daemonCommand    = "mps-daemon"
	rootedCommand    = "driver-program"
	simulatedCommand = "simulated"
	simulatedSMI     = "nvidia-smi"
	mpsControl       = "nvidia-cuda-mps-control"
)

func newMPSCommand(o *options, errOut io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "mps",
		Short: "Supervise the MPS daemons of this node, in a process that agent upgrades leave alone",
		Long: `Supervise one nvidia-cuda-mps-control daemon per GPU that the configuration shares by
MPS. The agent tells it, over a socket below --mps-root, which are wanted with which
limits. It runs beside berth-agent, in a DaemonSet of its own that is updated OnDelete
(deploy/mps.yaml), since its daemons, and with them every client, end with its
container.`,
		Example: `  berth-agent mps
  berth-agent mps --mps-root /run/berth/mps --host-root /host`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.load(cmd)
			if err != nil {
				return err
			}
			hardware, err := OpenHardware(o.sim, config)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			log := o.logger(errOut)
			supervisor, err := mps.New(mps.Deps{
				Root: config.MPSRoot, Program: hardware.MPSControl, Shim: []string{self, daemonCommand},
				ComputeMode: computeModes{hardware.actions(log)}, Log: log,
			})
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return supervisor.Run(ctx)
		},
	}
}

// newMPSDaemonCommand becomes the control daemon, with a /dev/shm of its own.
func newMPSDaemonCommand() *cobra.Command {
	return &cobra.Command{
		Use: daemonCommand, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return mps.ExecDaemon(args) },
	}
}

// newRootedCommand becomes a program of a driver that is installed below another root.
func newRootedCommand() *cobra.Command {
	return &cobra.Command{
		Use: rootedCommand, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return mps.ExecRooted(args) },
	}
}

// newSimulatedCommand stands in for the driver's programs on simulated hardware.
func newSimulatedCommand() *cobra.Command {
	return &cobra.Command{
		Use: simulatedCommand, Hidden: true, DisableFlagParsing: true,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			program, dir, rest := args[0], args[1], args[2:]
			in, out, errOut := os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
			code := 0
			switch program {
			case simulatedSMI:
				code = tools.SMI(dir, rest, in, out, errOut)
			case mpsControl:
				code = tools.MPSControl(dir, rest, in, out, errOut)
			default:
				return fmt.Errorf("no program %q of the driver is simulated", program)
			}
			if code != 0 {
				// The program has said why, and its status is part of what it says.
				os.Exit(code)
			}
			return nil
		},
	}
}
