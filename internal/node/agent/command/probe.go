package command

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/pages"
)

func newProbeCommand(o *sharedFlags) *cobra.Command {
	page := map[string]string{"healthy": "healthz", "ready": "readyz"}
	return &cobra.Command{
		Use:   "probe healthy|ready|clean",
		Short: "Check whether the agent of this container is healthy or ready, or its node clean, for exec probes",
		Long: `Check whether the agent of this container is healthy or ready, for the exec probes of
an image without a shell. The exit code is 0 if it is; otherwise the reason is printed.

The agent is found by --instance and --state-dir, which must be those that it was
started with. agent.sock is not used: during an upgrade it belongs to the other agent. clean is for a
container that runs berth-agent uninstall --hold.`,
		Example: `  berth-agent probe ready
  berth-agent probe healthy --state-dir /run/berth --instance node-0`,
		ValidArgs: []string{"healthy", "ready", "clean"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "clean" {
				return probeRemoval(cmd.Context())
			}
			dir := cmp.Or(o.Config.StateDir, config.DefaultStateDir)
			return probe(cmd.Context(), pages.Own(dir, cmp.Or(o.Instance, pages.DefaultInstance())), page[args[0]])
		},
	}
}

// probe requests a page from the agent at a socket; an error contains the agent's response.
func probe(ctx context.Context, socket, page string) error {
	if _, err := (pages.Client{Socket: socket}).Get(ctx, "/"+page); err != nil {
		return fmt.Errorf("probe agent: %w", err)
	}
	return nil
}
