package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/follow"
	"github.com/berth-gpu/berth/internal/node/gpunode"
)

func bindWatch(flags *pflag.FlagSet, watch *bool) {
	flags.BoolVarP(watch, "watch", "w", false, "after the table, print each row that changes; Ctrl-C ends it")
}

// followNodes returns what follows the GPUNodes that the flags select, or those with the wanted names.
func followNodes(ctx context.Context, what string, deps Deps, from *sources, out *output, wanted []string) (follow.Deps, error) {
	none := follow.Deps{}
	if err := from.checkChoice(); err != nil {
		return none, err
	}
	switch {
	case !out.IsTable():
		return none, usagef("-w prints rows of a table: want -o table or -o wide, got -o %s", out.Format())
	case out.Sorted():
		return none, usagef("-w prints rows as they change: leave out --sort-by")
	case slices.ContainsFunc(localFlags(), from.flags.Changed):
		return none, usagef("-w follows the objects of an API server: leave it out, or the flags that read this machine; berth top shows this node live")
	}
	api, noAPI := from.api()
	if api == nil {
		return none, &hintError{fmt.Errorf("%s: no API server: %s", what, noAPI), "fix: " + from.connection.Fix()}
	}
	config, err := from.connection.WatchConfig()
	if err != nil {
		return none, err
	}
	watcher, err := dynamic.NewForConfig(config)
	if err != nil {
		return none, err
	}
	made := follow.Deps{
		List: api.Client.Resource(v1alpha1.GPUNodes()).List, Watch: watcher.Resource(v1alpha1.GPUNodes()).Watch,
		Out: deps.Out, Err: deps.Err, Clock: clock.RealClock{},
	}
	switch {
	case len(wanted) > 0 && from.selector != "":
		return none, usagef("-w: want the names of nodes or -l, not both")
	case len(wanted) > 0:
		// A name that there is not is an error, as without -w. An error of the API server is one of the list that follows.
		if nodes, err := api.ListGPUNodes(ctx); err == nil {
			if _, err := chosen(nodes, wanted); err != nil {
				return none, err
			}
		}
		made.Select = func(context.Context) ([]string, error) { return wanted, nil }
	case from.selector != "":
		made.Select = func(ctx context.Context) ([]string, error) { return api.NodeNames(ctx, from.selector) }
	}
	return made, nil
}

// runFollow follows until the user ends it.
func runFollow(ctx context.Context, what string, followed follow.Deps) error {
	if err := follow.Run(ctx, followed); err != nil {
		return apiError(fmt.Errorf("%s: the GPUNode objects of berth-agent: %w", what, err), "without -w: berth "+what)
	}
	return nil
}

// followGPUs prints the GPUs, and then those that change.
func followGPUs(ctx context.Context, deps Deps, from *sources, out *output, wanted []string) error {
	followed, err := followNodes(ctx, "gpus", deps, from, out, wanted)
	if err != nil {
		return err
	}
	empty := newGPURows(true, out.IsWide())
	if !out.RowsOnly() {
		followed.Head = empty.head
	}
	followed.State, followed.Age = slices.Index(empty.head, "HEALTH"), -1
	followed.Rows = func(object *unstructured.Unstructured) ([]follow.Row, error) {
		node, err := gpunode.Decode(object)
		if err != nil {
			return nil, err
		}
		return gpuFollowRows(node, out.IsWide(), from.connection.Chosen()), nil
	}
	return runFollow(ctx, "gpus", followed)
}

// gpuFollowRows returns the rows of a node. Those that the namespace does not hold are hidden; "" is all.
func gpuFollowRows(node *v1alpha1.GPUNode, wide bool, namespace string) []follow.Row {
	list := gpuList([]v1alpha1.GPUNode{*node}, nil)
	table := newGPURows(true, wide)
	uuid := slices.Index(table.head, "UUID")
	for i := range list.Items {
		table.addGPU(&list.Items[i])
	}
	heldIn(list, namespace)
	held := newGPURows(true, wide)
	for i := range list.Items {
		held.addGPU(&list.Items[i])
	}
	var rows []follow.Row
	for _, cells := range table.rows {
		shown := slices.ContainsFunc(held.rows, func(other []string) bool { return other[uuid] == cells[uuid] })
		rows = append(rows, follow.Row{Key: cells[uuid], Cells: cells, Hidden: !shown})
	}
	return rows
}

// followStatus prints the nodes, and then those whose state changes.
func followStatus(ctx context.Context, deps Deps, from *sources, out *output, waits bool) error {
	if waits {
		return usagef("want --wait, which ends when each node is validated, or -w, not both")
	}
	followed, err := followNodes(ctx, "status", deps, from, out, nil)
	if err != nil {
		return err
	}
	head := statusHead(out.IsWide())
	if !out.RowsOnly() {
		followed.Head = head
	}
	followed.State, followed.Age = slices.Index(head, "STATE"), slices.Index(head, "SINCE")
	api, noAPI := from.api()
	if api == nil {
		return fmt.Errorf("status: no API server: %s", noAPI)
	}
	stack := stackWait{clock: followed.Clock, list: func(ctx context.Context) ([]v1alpha1.GPUStack, error) {
		return listOf[v1alpha1.GPUStack](ctx, api.Client, v1alpha1.GPUStacks())
	}}
	followed.Rows = func(object *unstructured.Unstructured) ([]follow.Row, error) {
		node, err := gpunode.Decode(object)
		if err != nil {
			return nil, err
		}
		report := nodeReport(node)
		starting := report.State == stateNoGate && stack.missing(ctx)
		return []follow.Row{{Key: report.Node, Cells: statusRow(&report, followed.Clock.Now(), out.IsWide(), starting)}}, nil
	}
	return runFollow(ctx, "status", followed)
}

// stackInterval is the shortest time between two reads of the GPUStacks while the status is followed.
const stackInterval = 5 * time.Second

// stackWait tells whether the operator has still to make the GPUStack.
type stackWait struct {
	list  func(context.Context) ([]v1alpha1.GPUStack, error)
	clock clock.PassiveClock
	// read is when the GPUStacks were read, none that there was none, and made that there is one, which is not read again.
	read time.Time
	none bool
	made bool
}

// missing reports whether the API server serves GPUStacks and has none with the name that Berth has.
func (s *stackWait) missing(ctx context.Context) bool {
	if s.made || !s.read.IsZero() && s.clock.Since(s.read) < stackInterval {
		return s.none
	}
	stacks, err := s.list(ctx)
	s.read = s.clock.Now()
	s.made = slices.ContainsFunc(stacks, func(one v1alpha1.GPUStack) bool { return one.Name == v1alpha1.GPUStackName })
	s.none = err == nil && !s.made
	return s.none
}
