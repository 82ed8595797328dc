package command

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// daemonCommand is the hidden command that becomes an MPS control daemon.
const daemonCommand = "mps-daemon"

func newMPSCommand(o *sharedFlags, open opener, errOut io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "mps",
		Short: "Run the MPS daemons of this node, in a process that survives an upgrade of the agent",
		Long: `Run one nvidia-cuda-mps-control daemon for each GPU that the configuration shares with
MPS. The agent sends the list of these GPUs and their limits over a socket in --mps-root.

It runs beside berth-agent in a DaemonSet of its own with the update strategy OnDelete
(mps.enabled of the chart): the daemons, and with them all their clients, end when its
container ends.`,
		Example: `  # In the container of the DaemonSet berth-mps
  berth-agent mps --host-root /host

  # On simulated hardware
  berth-agent mps --sim /tmp/gpus --mps-root /tmp/mps`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.Load(cmd)
			if err != nil {
				return err
			}
			machine, err := open(o.Sim, config)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			log := o.Logger(errOut)
			modes, _ := vendor.Find[hardware.ComputeModer](machine.Vendors(hardware.VendorDeps{Log: log}))
			supervisor, err := mps.New(mps.Deps{
				Root: config.MPSRoot, Program: machine.MPSControl, Shim: []string{self, daemonCommand},
				ComputeMode: hardware.NewComputeModes(modes), Log: log,
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

// newHiddenCommands returns the commands that only Berth itself starts.
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
	}
}
