package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cli/uninstall"
)

func newUninstallCommand(deps Deps) *cobra.Command {
	var from sources
	var all, yes bool
	var options uninstall.Options
	cmd := &cobra.Command{
		Use:   "uninstall --all",
		Short: "Remove Berth from a cluster and its nodes",
		Long: `Remove Berth from a cluster: the operator, the agents, the files and labels on each node, the
ResourceSlices, and all of Berth's own objects with their definitions.

Run it before helm uninstall, which removes the rest of the release. After a helm uninstall alone
it works too: it finds what is left. It can be ended at any point and run again.

The files of a node are removed by a pod of the DaemonSet berth-uninstall, with the image of the
agent: on the nodes of the agents, or on those with a GPUNode; with --image on all, when nothing says
which nodes had one. A node that is not ready is skipped, and the exit code is 1. Running pods keep
their GPUs; those that share a GPU by MPS end. Until another program advertises the GPUs no pod gets one.`,
		Example: `  berth uninstall --all && helm uninstall berth -n berth-system
  berth uninstall --all --yes --timeout 15m
  berth uninstall --all --image registry.example.com/berth-agent:1.2.0
                                  when the definitions were deleted before: clean each node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !all {
				return usagef("uninstall: give --all, which says that Berth is removed from the whole cluster; for one node, run berth-agent uninstall on it")
			}
			if options.Timeout <= 0 {
				return usagef("--timeout %s: want a positive duration, as in 5m", options.Timeout)
			}
			api, noAPI := from.api()
			if api == nil {
				return &hintError{fmt.Errorf("uninstall: no API server: %s", noAPI), "fix: " + from.connection.Fix()}
			}
			if !yes {
				options.Confirm = func(plan string) error { return confirm(cmd.InOrStdin(), deps.Err, plan) }
			}
			err := uninstall.Run(cmd.Context(), uninstall.Deps{Client: api.Client, Clock: clock.RealClock{}, Out: cleanLines{deps.Out}}, options)
			if prevented, ok := errors.AsType[*uninstall.NotDoneError](err); ok {
				return finding(fmt.Errorf("uninstall: %w", prevented))
			}
			if err != nil {
				return apiError(fmt.Errorf("uninstall: %w", err), "")
			}
			return nil
		},
	}
	from.bindKube(cmd.Flags())
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "remove Berth from the whole cluster")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&options.Force, "force", false, "go on under active NodeOperations, and where nodes cannot be cleaned")
	flags.StringVarP(&options.Namespace, "namespace", "n", "", "the namespace of the release (default: that of the GPUStack, or "+uninstall.DefaultNamespace+")")
	flags.StringVar(&options.Image, "image", "", "the image of the agent, for the pods that clean the nodes (default: that of the agents that run)")
	flags.DurationVar(&options.Timeout, "timeout", 5*time.Minute, "how long each step may wait for pods and nodes")
	return cmd
}

// confirm asks the user.
func confirm(in io.Reader, out io.Writer, plan string) error {
	fmt.Fprintf(out, "%s\nGo on? [y/N] ", plan)
	answer, err := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	fmt.Fprintln(out)
	return finding(errors.New("not confirmed, nothing was changed; give --yes to go on without a question"))
}

// cleanLines escapes control characters of lines that have texts of the cluster.
type cleanLines struct{ out io.Writer }

func (c cleanLines) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Fprintln(c.out, term.Clean(strings.TrimSuffix(line, "\n"))); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}
