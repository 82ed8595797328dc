package command

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/pages"
)

func newProbeCommand(o *options) *cobra.Command {
	page := map[string]string{"healthy": "healthz", "ready": "readyz"}
	return &cobra.Command{
		Use:   "probe healthy|ready",
		Short: "Ask the running agent of this container how it is; for the probes of an image without a shell",
		Long: `Ask the running agent of this container, over the socket of its own, how it is. During an
upgrade another agent serves the name agent.sock, which is of no use to a probe. The agent is
found by --instance and --state-dir, which are those that it was started with.`,
		Example:   "  berth-agent probe ready",
		ValidArgs: []string{"healthy", "ready"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := cmp.Or(o.flags.StateDir, config.DefaultStateDir)
			return probe(cmd.Context(), pages.Own(dir, cmp.Or(o.instance, pages.DefaultInstance())), page[args[0]])
		},
	}
}

// probe asks the agent with a socket for a page; the error is what the agent answers.
func probe(ctx context.Context, socket, page string) error {
	if _, err := (pages.Client{Socket: socket}).Get(ctx, "/"+page); err != nil {
		return fmt.Errorf("probe agent: %w", err)
	}
	return nil
}
