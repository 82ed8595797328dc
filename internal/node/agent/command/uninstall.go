package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/agent"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/agent/library"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/pages"
)

func newUninstallCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what agents left on this node and in the API: sockets, CDI spec, hook, state, labels, GPUNode",
		Long: `Remove what agents left on this node and in the API. Stop the agent first.
What MPS supervisors left stays, until the next boot.
Running containers keep their devices. Until another agent is installed no GPU is
advertised, and a pod that was given one before cannot start again.`,
		Example: "  berth-agent uninstall\n  berth-agent uninstall --standalone   # leave the API alone",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.load(cmd)
			if err != nil {
				return err
			}
			api, err := connect(config, o.kubeconfig)
			if err != nil {
				return fmt.Errorf("%w; with --standalone the API is left alone", err)
			}
			return uninstall(cmd.Context(), config, api, cmd.OutOrStdout())
		},
	}
}

// step is one thing to remove.
type step struct {
	what   string
	remove func() error
}

// uninstall removes everything that agents left on the node and, unless api is nil, in the API. It prints each step, and
// continues after one that failed. Each package removes the files that it owns.
func uninstall(ctx context.Context, config *v1alpha1.AgentConfig, api dynamic.Interface, out io.Writer) error {
	steps := []step{
		{"sockets in " + filepath.Join(config.KubeletDir, "device-plugins"), func() error { return deviceplugin.Remove(config.KubeletDir) }},
		{"CDI spec in " + config.CDIDir, func() error { return cdi.New(cdi.Deps{Dir: config.CDIDir}).Remove() }},
		{"hook programs in " + config.HookDir, func() error { return cdi.RemoveHooks(config.HookDir) }},
		{"sockets in " + config.StateDir, func() error { return pages.Remove(config.StateDir) }},
		{"ledger in " + config.StateDir, func() error { return removeState(config.StateDir) }},
		{"journals and last good configuration in " + config.PersistentDir, func() error { return removePersistent(config.PersistentDir) }},
		{"labels about the GPUs", func() error { return agent.RemoveLabels(ctx, config, api) }},
	}
	if api != nil {
		steps = append(steps,
			step{"label " + configwatch.LabelMIGState + " of Node " + config.NodeName, func() error { return agent.RemoveMIGState(ctx, api, config.NodeName) }},
			step{"condition and taint of Node " + config.NodeName, func() error { return agent.RemoveHealth(ctx, api, config.NodeName) }},
			step{"GPUNode " + config.NodeName, func() error { return gpunode.Remove(ctx, api, config.NodeName) }},
		)
	}
	var failed []error
	for _, step := range steps {
		if err := step.remove(); err != nil {
			failed = append(failed, fmt.Errorf("remove %s: %w", step.what, err))
			continue
		}
		fmt.Fprintln(out, "removed", step.what)
	}
	return errors.Join(failed...)
}

func removeState(dir string) error {
	err := errors.Join(
		allocatable.Remove(dir), inventory.Remove(dir), kubeletsync.Remove(dir), ledger.Remove(dir), library.Remove(dir),
		reset.Remove(dir), timeslice.Remove(dir),
	)
	removeIfEmpty(dir)
	return err
}

func removePersistent(dir string) error {
	err := errors.Join(migapply.Remove(dir), configwatch.Remove(dir))
	removeIfEmpty(dir)
	return err
}

// removeIfEmpty removes a folder, or leaves it when it has files of other programs.
func removeIfEmpty(dir string) { _ = os.Remove(dir) }
