package command

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// daemonCommand is the hidden command that becomes an MPS control daemon.
const daemonCommand = "mps-daemon"

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
			machine, err := hardware.Open(o.sim, config)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			log := o.logger(errOut)
			supervisor, err := mps.New(mps.Deps{
				Root: config.MPSRoot, Program: machine.MPSControl, Shim: []string{self, daemonCommand},
				ComputeMode: hardware.NewComputeModes(machine.Actions(log)), Log: log,
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

// newHiddenCommands returns the commands that are for other programs of Berth only.
func newHiddenCommands() []*cobra.Command {
	return []*cobra.Command{
		// Becomes the control daemon, with a /dev/shm of its own.
		{
			Use: daemonCommand, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error { return mps.ExecDaemon(args) },
		},
		// Becomes a program of a driver that is installed below another root.
		{
			Use: hardware.RootedCommand, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error { return mps.ExecRooted(args) },
		},
		// Stands in for a program of the driver on simulated hardware.
		{
			Use: hardware.SimulatedCommand, Hidden: true, DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				code, err := hardware.RunSimulated(args, os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr())
				if err == nil && code != 0 {
					// The program has printed the reason, and callers read its status.
					os.Exit(code)
				}
				return err
			},
		},
	}
}
