package command

import (
	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

func execCommand(dir *string) *cobra.Command {
	name := ""
	cmd := &cobra.Command{
		Use:   "exec [--node NAME] -- PROGRAM [ARG ...]",
		Short: "Run a program of this machine as if on a node",
		Long: `exec runs a program in the node's mount and network namespaces: it sees the
node's kubelet directory, CDI specs and sockets in their usual places, and finds
the API server (KUBECONFIG is set).`,
		Example: `  berth-sandbox exec -- ls /var/lib/kubelet/device-plugins
  berth-sandbox exec -- $PWD/bin/berth trace two-gpus`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sandbox.Open(*dir)
			if err != nil {
				return err
			}
			node, err := c.Node(name)
			if err != nil {
				return err
			}
			return node.RunInside(cmd.Context(), sandbox.Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(),
				Err: cmd.ErrOrStderr()}, args...)
		},
	}
	cmd.Flags().StringVar(&name, "node", "node-0", "the node")
	return cmd
}
