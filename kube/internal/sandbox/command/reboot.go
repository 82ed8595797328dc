package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

func rebootCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "reboot NODE",
		Short: "Reboot a node",
		Long: `reboot ends every process of the node without notice and starts the node again.
As after a reboot of a machine, /run is empty, the boot ID is another one, and the
simulated GPUs have lost their MIG devices and their faults. The kubelet restarts
the pods that are still bound to the node.`,
		Example: "  berth-sandbox reboot node-0",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sandbox.Open(*dir)
			if err != nil {
				return err
			}
			node, err := c.Node(args[0])
			if err != nil {
				return err
			}
			began := time.Now()
			cmd.PrintErrf("rebooting %s\n", node.Name())
			if err := node.Reboot(cmd.Context(), sandbox.RebootOptions{}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is Ready again after %.1f s\n", node.Name(), time.Since(began).Seconds())
			return err
		},
	}
}
