package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

func newMIGCommand(deps Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mig",
		Short: "How a node's GPUs are partitioned: what a layout would change, and changing it",
		Long: `mig shows what has to be done to partition a node's GPUs as a MIG layout wants, and does it.

Layouts are those of the ConfigMap that berth-agent follows (in mig-parted's format), those of its
configuration, and those that follow from the hardware: all-disabled, all-enabled, all-balanced
and all-PROFILE for each profile.

Exit codes: 0 done, or nothing to do; 1 the layout is refused, or was waited for in vain;
2 it could not be found out or asked for.`,
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
		Short: "Show what a MIG layout would change, without changing anything",
		Long: `plan prints, for each GPU that the layout names, its memory slices now and then: which MIG
devices stay, which go, where the new ones are made, and who is in the way.

It reads the node's GPUNode object, or the hardware of this node (--node-local) or of a
simulated one (--sim), where the layout is the only argument. --file plans with the layouts of a
file, before they are anywhere in the cluster.`,
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
				return cannot(err)
			}
			switch len(rest) {
			case 0:
				return usagef("mig plan %s: say which layout too; berth mig layouts %s lists them", args[0], args[0])
			case 2:
				return usagef("mig plan %s: this node is read; leave the name %s out", strings.Join(args, " "), args[0])
			}
			layouts, err := subject.layouts(cmd.Context(), file)
			if err != nil {
				return cannot(err)
			}
			plan, err := layouts.plan(subject, rest[0])
			if err != nil {
				return cannot(err)
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
	cmd.Flags().StringVar(&file, "file", "", "a file with layouts, in mig-parted's format; they win over the agent's")
	return cmd
}

func newMIGLayoutsCommand(deps Deps) *cobra.Command {
	var from sources
	file := ""
	cmd := &cobra.Command{
		Use:   "layouts NODE",
		Short: "List the MIG layouts that a node can be asked for",
		Example: `  berth mig layouts node-0
  berth mig layouts --sim /tmp/node --file mig-parted.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			subject, rest, err := migSubjectOf(cmd.Context(), &from, "mig layouts", args)
			if err != nil {
				return cannot(err)
			}
			if len(rest) > 0 {
				return usagef("mig layouts %s: this node is read; leave the name out", strings.Join(rest, " "))
			}
			layouts, err := subject.layouts(cmd.Context(), file)
			if err != nil {
				return cannot(err)
			}
			var rows [][]string
			for _, name := range mig.LayoutNames(layouts.byName) {
				rows = append(rows, []string{name, layouts.source[name]})
			}
			return errors.Join(term.Table(deps.Out, []string{"LAYOUT", "DEFINED BY"}, rows), notReadTable(deps.Out, layouts.notRead))
		},
	}
	from.bind(cmd.Flags(), deps)
	cmd.Flags().StringVar(&file, "file", "", "a file with layouts, in mig-parted's format")
	return cmd
}

func newMIGApplyCommand(deps Deps) *cobra.Command {
	var from sources
	var force, dryRun bool
	wait := 5 * time.Minute
	cmd := &cobra.Command{
		Use:   "apply NODE LAYOUT",
		Short: "Partition a node's GPUs as a MIG layout wants",
		Long: `apply prints the plan, asks for the layout by setting the label nvidia.com/mig.config of the
Node, and waits until berth-agent has applied it (nvidia.com/mig.config.state is success, and
the GPUNode shows it). Nothing that is held is destroyed: while pods are in the way it says for whom it
waits, and nothing more of what will go is given out.

With --force the pods in the way are evicted, by your own rights and under their
PodDisruptionBudgets, once the agent has taken up the layout. Pods without a controller do not come back.

It does not work on simulated hardware without an agent (there is no --sim), nor with layouts that
only a file has: the agent would not know them. Put them into its ConfigMap.`,
		Example: `  berth mig apply node-0 all-1g.10gb
  berth mig apply node-0 all-disabled --force --wait 10m
  berth mig apply node-0 all-balanced --dry-run`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			api, noAPI := from.api()
			if api == nil {
				return cannot(&hintError{fmt.Errorf("mig apply: no API server: %s", noAPI), "fix: give --kubeconfig FILE"})
			}
			subject, err := migSubjectOfNode(ctx, api, args[0])
			if err != nil {
				return cannot(err)
			}
			layouts, err := subject.layouts(ctx, "")
			if err != nil {
				return cannot(err)
			}
			plan, err := layouts.plan(subject, args[1])
			if err != nil {
				return cannot(err)
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
				return a.rehearse(subject.object)
			}
			return a.apply(ctx, subject.object)
		},
	}
	from.bindKube(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "evict the pods in the way")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long to wait until it is applied; 0 does not wait")
	return cmd
}

// errRefused ends a command after a plan was printed that is refused.
var errRefused = errors.New("the layout is refused")

// migSubject is the hardware that a plan is for.
type migSubject struct {
	// node is the name; empty for hardware that is no node's.
	node  string
	cards []mig.GPU
	// object and api are those of a node that was read from an API server.
	object *v1alpha1.GPUNode
	api    *evidence.API
}

// migSubjectOf reads this node where the flags say so, otherwise the node that the first
// argument names. It returns the arguments that are left.
func migSubjectOf(ctx context.Context, from *sources, what string, args []string) (*migSubject, []string, error) {
	if slices.ContainsFunc(localFlags(), from.flags.Changed) {
		subject, err := migSubjectHere(ctx, from, what)
		return subject, args, err
	}
	api, noAPI := from.api()
	if api == nil {
		return nil, nil, from.nothingToRead(what, noAPI, "  berth mig plan --sim DIR LAYOUT           a simulated node")
	}
	if len(args) == 0 {
		return nil, nil, usagef("%s: say which node, as in berth %s node-0", what, what)
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
		return nil, noHardware(what, local)
	}
	subject := &migSubject{node: local.Host}
	holders := holdersOfNode(localNode(local))
	for i := range local.Snapshot.GPUs {
		subject.cards = append(subject.cards, mig.GPUOf(&local.Snapshot.GPUs[i], holders))
	}
	return subject, nil
}

func migSubjectOfNode(ctx context.Context, api *evidence.API, name string) (*migSubject, error) {
	object, err := api.Client.Resource(v1alpha1.GPUNodes()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		nodes, listError := api.GPUNodes(ctx, &trace.Evidence{})
		if listError == nil {
			_, err = chosen(nodes, []string{name})
		}
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("read GPUNode %s: %w", name, err)
	}
	node, err := gpunode.Decode(object)
	if err != nil {
		return nil, err
	}
	return &migSubject{node: name, cards: cardsOf(node), object: node, api: api}, nil
}
