package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

func newMIGCommand(deps Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mig",
		Short: "Show and apply the MIG layout of a node's GPUs",
		Long: `Show which changes a MIG layout requires on a node's GPUs, and apply it.

A layout is one of the ConfigMap that berth-agent follows (in mig-parted's format), of the
agent's configuration, or one that every GPU with MIG has: all-disabled, all-enabled,
all-balanced, and all-PROFILE for each profile.

The exit code is 0 if the layout is applied or needs no change, 1 if it is refused or was not
applied in time, 2 if this could not be determined or requested.`,
		Example: `  berth mig layouts node-0
  berth mig plan node-0 all-1g.10gb
  berth mig apply node-0 all-1g.10gb`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMIGPlanCommand(deps), newMIGApplyCommand(deps), newMIGLayoutsCommand(deps))
	return cmd
}

func newMIGPlanCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	file := ""
	cmd := &cobra.Command{
		Use:   "plan NODE LAYOUT",
		Short: "Show what a MIG layout would change, without changing it",
		Long: `Print, for each GPU that the layout names, its memory slices before and after: which MIG devices
stay, which are removed, where new ones are created, and which pods or programs block the change.

It reads the node's GPUNode object, or the hardware of this node (--node-local) or of a simulated
one (--sim); then the layout is the only argument. With --file it plans with the layouts of a
file that need not be in the cluster.`,
		Example: `  berth mig plan node-0 all-balanced
  berth mig plan node-0 mine --file mig-parted.yaml
  berth mig plan --sim /tmp/node all-1g.10gb
  berth mig plan node-0 all-disabled -o json | jq '.gpus[].blockers'`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			subject, rest, err := migSubjectOf(cmd.Context(), &from, "mig plan", args)
			if err != nil {
				return err
			}
			switch len(rest) {
			case 0:
				return usagef("mig plan %s: the layout is missing; berth mig layouts %s lists the layouts", args[0], args[0])
			case 2:
				return usagef("mig plan %s: these flags read this node; leave out the name %s", strings.Join(args, " "), args[0])
			}
			layouts, err := subject.layouts(cmd.Context(), file)
			if err != nil {
				return err
			}
			plan, err := layouts.plan(subject, rest[0])
			if err != nil {
				return err
			}
			if err := out.print(deps.Out, plan.object(), func(w io.Writer) error { return plan.print(w) }); err != nil {
				return err
			}
			if plan.state() == v1alpha1.MIGPlanRefused {
				return errRefused
			}
			return nil
		},
	}
	from.bind(cmd.Flags(), deps)
	out.bind(cmd.Flags())
	cmd.Flags().StringVar(&file, "file", "", "a file with layouts in mig-parted's format, which override the agent's")
	return cmd
}

func newMIGLayoutsCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	file := ""
	cmd := &cobra.Command{
		Use:   "layouts NODE",
		Short: "List the MIG layouts that can be applied to a node",
		Example: `  berth mig layouts node-0
  berth mig layouts --sim /tmp/node --file mig-parted.yaml
  berth mig layouts node-0 -o name          their names alone`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			subject, rest, err := migSubjectOf(cmd.Context(), &from, "mig layouts", args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return usagef("mig layouts %s: these flags read this node; leave out its name", strings.Join(rest, " "))
			}
			layouts, err := subject.layouts(cmd.Context(), file)
			if err != nil {
				return err
			}
			list := layouts.object(subject.node)
			rows := print.Of(list.Items, func(l *v1alpha1.MIGLayout) string { return l.Name })
			return out.Print(deps.Out, list, rows, func(w io.Writer) error { return layoutsTable(w, list, &out.Flags) })
		},
	}
	from.bind(cmd.Flags(), deps)
	out.AddTo(cmd.Flags(), print.Offer{List: "items", Field: "name", Named: true})
	cmd.Flags().StringVar(&file, "file", "", "a file with layouts in mig-parted's format")
	return cmd
}

func newMIGApplyCommand(deps Deps) *cobra.Command {
	var from sources
	var force, dryRun bool
	wait := 5 * time.Minute
	cmd := &cobra.Command{
		Use:   "apply NODE LAYOUT",
		Short: "Apply a MIG layout to a node's GPUs",
		Long: `Print the plan, request the layout by setting the label nvidia.com/mig.config of the Node, and
wait until berth-agent has applied it: nvidia.com/mig.config.state is success and the GPUNode
shows the layout.

A MIG device in use is never removed. While pods block the change the command reports them, and
devices that will be removed are not allocated to other pods. With --force these pods are
evicted, with your own permissions and subject to their PodDisruptionBudgets, once the agent has
accepted the layout. Pods without a controller are not created again.

It requires an agent: there is no --sim, and a layout that only a file has must first be added to
the ConfigMap that the agent follows.`,
		Example: `  berth mig apply node-0 all-1g.10gb
  berth mig apply node-0 all-disabled --force --wait 10m
  berth mig apply node-0 all-balanced --dry-run`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			api, noAPI := from.api()
			if api == nil {
				return &hintError{fmt.Errorf("mig apply: no API server: %s", noAPI), "fix: " + from.connection.Fix()}
			}
			subject, err := migSubjectOfNode(ctx, api, args[0])
			if err != nil {
				return err
			}
			layouts, err := subject.layouts(ctx, "")
			if err != nil {
				return err
			}
			plan, err := layouts.plan(subject, args[1])
			if err != nil {
				return err
			}
			if err := plan.print(deps.Out); err != nil {
				return err
			}
			if plan.state() == v1alpha1.MIGPlanRefused {
				return errRefused
			}
			a := &applier{
				client: api.Client, clock: clock.RealClock{}, out: deps.Out,
				node: args[0], layoutName: args[1], layout: layouts.byName[args[1]], force: force, wait: wait,
			}
			if dryRun {
				return a.printDryRun(subject.object)
			}
			return a.apply(ctx, subject.object)
		},
	}
	from.bindKube(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "evict the pods that block the change")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, without doing it")
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long to wait until the layout is applied; 0 does not wait")
	return cmd
}

// migSubject is the hardware that a plan is for.
type migSubject struct {
	// node is its name; empty for hardware that does not belong to a node.
	node string
	gpus []mig.GPU
	// object and api are set for a node that was read from an API server.
	object *v1alpha1.GPUNode
	api    *evidence.API
}

// migSubjectOf reads this node if the flags require it, otherwise the node that the first argument names. It returns
// the remaining arguments.
func migSubjectOf(ctx context.Context, from *sources, what string, args []string) (*migSubject, []string, error) {
	if slices.ContainsFunc(localFlags(), from.flags.Changed) {
		if err := from.onlyHere(what); err != nil {
			return nil, nil, err
		}
		subject, err := migSubjectHere(ctx, from, what)
		return subject, args, err
	}
	api, noAPI := from.api()
	if api == nil {
		return nil, nil, from.nothingToRead(what, noAPI, "  berth mig plan --sim DIR LAYOUT           a simulated node")
	}
	if len(args) == 0 {
		return nil, nil, usagef("%s: the name of a node is missing, as in berth %s node-0", what, what)
	}
	subject, err := migSubjectOfNode(ctx, api, args[0])
	return subject, args[1:], err
}

func migSubjectHere(ctx context.Context, from *sources, what string) (*migSubject, error) {
	local, err := from.localGPUs(ctx)
	if err != nil {
		return nil, err
	}
	if local.Snapshot == nil {
		return nil, noHardware(what, from.sim, local)
	}
	subject := &migSubject{node: local.Host}
	holders := holdersOfNode(localNode(local))
	for i := range local.Snapshot.GPUs {
		subject.gpus = append(subject.gpus, mig.GPUOf(&local.Snapshot.GPUs[i], holders))
	}
	return subject, nil
}

func migSubjectOfNode(ctx context.Context, api *evidence.API, name string) (*migSubject, error) {
	object, err := api.Client.Resource(v1alpha1.GPUNodes()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if nodes, listError := api.ListGPUNodes(ctx); listError == nil {
			found, err := chosen(nodes, []string{name})
			if err != nil {
				return nil, err
			}
			// It was made after the first read.
			return &migSubject{node: name, gpus: gpusOf(&found[0]), object: &found[0], api: api}, nil
		}
	}
	if err != nil {
		return nil, apiError(fmt.Errorf("read GPUNode %s: %w", name, err), "")
	}
	node, err := gpunode.Decode(object)
	if err != nil {
		return nil, err
	}
	return &migSubject{node: name, gpus: gpusOf(node), object: node, api: api}, nil
}
