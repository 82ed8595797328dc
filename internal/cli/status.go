package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/cli/term"
)

// statusInterval is the time between two reads while berth status waits.
const statusInterval = time.Second

func newStatusCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var wait time.Duration
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the installation, and what each node with GPUs waits for",
		Long: `Show the version that is installed, the state of each node with GPUs, and the operations that
are being done to nodes.

A node goes through the states Found, DriverReady, RuntimeReady, SpecReady, Held and Validated.
It accepts pods with GPUs from Validated on; before, WAITS FOR has the code of the problem, which
docs/problems.md explains, and what to do. For a node that is validated it says who did that.
A note says why the operator or the scheduler does not work, such as an operator that is older than
the cluster's definitions.`,
		Example: `  berth status
  berth status -l pool=a100                    of the nodes with a label
  berth status -w                              and then each node whose state changes
  berth status --wait 10m                      wait until each node accepts pods with GPUs
  berth status -o json | jq -r '.nodes[] | select(.state != "Validated") | .node'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if watch {
				return followStatus(cmd.Context(), deps, &from, &out, cmd.Flags().Changed("wait"))
			}
			if wait < 0 {
				return usagef("--wait %s: want a positive duration, as in 10m; leave it out not to wait", wait)
			}
			if err := from.checkChoice(); err != nil {
				return err
			}
			api, noAPI := from.api()
			if api == nil {
				return &hintError{fmt.Errorf("status: no API server: %s", noAPI), "fix: " + from.connection.Fix()}
			}
			read := func(ctx context.Context) (*v1alpha1.StatusReport, error) { return from.statusOf(ctx, api) }
			w := statusWait{read: read, clock: clock.RealClock{}, out: deps.Err, limit: wait}
			report, err := w.await(cmd.Context())
			if report == nil {
				return err
			}
			rows := print.Of(report.Nodes, func(n *v1alpha1.NodeReport) string { return "node/" + n.Node })
			return errors.Join(out.Print(deps.Out, report, rows, func(w io.Writer) error { return statusTable(w, report, time.Now(), &out.Flags) }), err)
		},
	}
	from.bindKube(cmd.Flags())
	from.bindSelector(cmd.Flags())
	bindWatch(cmd.Flags(), &watch)
	out.AddTo(cmd.Flags(), print.Offer{List: "nodes", Field: "node", Named: true, Wide: true})
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait this long until each node is validated; progress is printed to standard error")
	return cmd
}

// errNotInstalled says that a cluster has none of Berth's objects.
var errNotInstalled error = &hintError{errors.New("status: Berth is not installed in this cluster: it has no GPUNode objects and no GPUStack"),
	"fix: helm install berth charts/berth --namespace berth-system --create-namespace, or select another cluster with --kubeconfig or --context"}

// statusWait reads the state until each node is validated.
type statusWait struct {
	read  func(context.Context) (*v1alpha1.StatusReport, error)
	clock clock.Clock
	out   io.Writer
	// limit is how long it waits; 0 is not at all.
	limit time.Duration
	last  string // the last line of progress
}

// await returns the state of the cluster, and an error with the reasons when the limit has passed before each node was validated. A failed
// read is attempted again until then.
func (s *statusWait) await(ctx context.Context) (*v1alpha1.StatusReport, error) {
	deadline := s.clock.Now().Add(s.limit)
	for {
		report, err := s.read(ctx)
		if s.limit == 0 {
			return report, err
		}
		missing := []string{"no node has reported its GPUs"}
		switch {
		case err != nil:
			missing = []string{err.Error()}
		case len(report.Nodes) > 0:
			missing = notValidated(report)
		}
		if len(missing) == 0 {
			return report, nil
		}
		if !s.clock.Now().Before(deadline) {
			if err == nil {
				err = finding(fmt.Errorf("status: not validated within %s:\n  %s", s.limit, term.Clean(missing[0])+linesOf(missing[1:])))
			}
			return report, err
		}
		s.progress("waiting: " + missing[0] + andMore(len(missing)-1))
		select {
		case <-ctx.Done():
			return report, ctx.Err()
		case <-s.clock.After(min(statusInterval, deadline.Sub(s.clock.Now()))):
		}
	}
}

// progress prints a line, unless it repeats the one before.
func (s *statusWait) progress(text string) {
	text, _, _ = strings.Cut(text, "\n")
	if text = term.Clean(text); text != s.last {
		s.last = text
		fmt.Fprintln(s.out, text)
	}
}

func linesOf(lines []string) string {
	var out strings.Builder
	for _, line := range lines {
		out.WriteString("\n  " + term.Clean(line))
	}
	return out.String()
}

func andMore(count int) string {
	if count <= 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", count)
}

// stateNoGate is the state of a node whose gate is off: it accepts pods with GPUs.
const stateNoGate = "-"

// noteNoStack is the note about a cluster whose API server serves GPUStacks, so that an operator runs or ran there, and that has none.
const noteNoStack = "GPUStack: there is none with the name default; the operator makes it from the ConfigMap " + v1alpha1.GPUStackConfigMap

// notValidated returns what each node waits for that is not validated. Before the operator has made the GPUStack, a node without a gate is
// one whose agent has just started.
func notValidated(report *v1alpha1.StatusReport) []string {
	var waiting []string
	starting := withoutStack(report)
	for i := range report.Nodes {
		if n := &report.Nodes[i]; starting && n.State == stateNoGate {
			waiting = append(waiting, fmt.Sprintf("node %s %s", n.Node, noGateYet))
		}
		if n := &report.Nodes[i]; n.State != string(v1alpha1.GateValidated) && n.State != stateNoGate {
			waiting = append(waiting, fmt.Sprintf("node %s is %s: %s", n.Node, n.State, waitsFor(n, starting)))
		}
	}
	return waiting
}

// noGateYet says why a node has no gate while the operator has not made the GPUStack.
const noGateYet = "has no gate yet: the operator has not made the GPUStack"

// withoutStack reports whether the API server serves GPUStacks and the operator has still to make the one that there is.
func withoutStack(report *v1alpha1.StatusReport) bool {
	return slices.Contains(report.Notes, noteNoStack)
}

// statusOf reads the state of the nodes that -l selects.
func (s *sources) statusOf(ctx context.Context, api *evidence.API) (*v1alpha1.StatusReport, error) {
	report, err := readStatus(ctx, api.Client)
	if err != nil || s.selector == "" {
		return report, err
	}
	if report.Nodes, err = selected(ctx, s, api, report.Nodes, func(n *v1alpha1.NodeReport) string { return n.Node }); err != nil {
		return nil, err
	}
	report.Operations = slices.DeleteFunc(report.Operations, func(o v1alpha1.OperationReport) bool {
		return !slices.ContainsFunc(report.Nodes, func(n v1alpha1.NodeReport) bool { return n.Node == o.Node })
	})
	return report, nil
}

// readStatus reads the objects of Berth. Of those that the API server does not serve or does not show, a note is left.
func readStatus(ctx context.Context, client dynamic.Interface) (*v1alpha1.StatusReport, error) {
	report := &v1alpha1.StatusReport{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindStatusReport), Nodes: []v1alpha1.NodeReport{}}
	nodes, errNodes := listOf[v1alpha1.GPUNode](ctx, client, v1alpha1.GPUNodes())
	if errNodes != nil && !apierrors.IsNotFound(errNodes) {
		return nil, apiError(fmt.Errorf("status: %w", errNodes), "")
	}
	stacks, errStacks := listOf[v1alpha1.GPUStack](ctx, client, v1alpha1.GPUStacks())
	operations, errOperations := listOf[v1alpha1.NodeOperation](ctx, client, v1alpha1.NodeOperations())
	if errNodes != nil && apierrors.IsNotFound(errStacks) {
		return nil, errNotInstalled
	}
	for _, read := range []struct {
		kind string
		err  error
	}{{v1alpha1.KindGPUNode, errNodes}, {v1alpha1.KindGPUStack, errStacks}, {v1alpha1.KindNodeOperation, errOperations}} {
		if err := addNote(report, read.kind, read.err); err != nil {
			return nil, err
		}
	}
	for i := range nodes {
		report.Nodes = append(report.Nodes, nodeReport(&nodes[i]))
	}
	slices.SortFunc(report.Nodes, func(a, b v1alpha1.NodeReport) int { return cmp.Compare(a.Node, b.Node) })
	for i := range stacks {
		if stacks[i].Name == v1alpha1.GPUStackName {
			report.Stack = stackReport(&stacks[i])
		}
	}
	if report.Stack == nil && errStacks == nil {
		report.Notes = append(report.Notes, noteNoStack)
	}
	for i := range operations {
		if o := &operations[i]; !ended(o) {
			report.Operations = append(report.Operations, operationReport(o))
		}
	}
	slices.SortFunc(report.Operations, func(a, b v1alpha1.OperationReport) int { return cmp.Compare(a.Name, b.Name) })
	return report, addDeployments(ctx, client, report)
}

// addNote adds to the report why objects of a kind are missing in it. It returns other errors.
func addNote(report *v1alpha1.StatusReport, kind string, err error) error {
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		report.Notes = append(report.Notes, kind+": the API server does not have this kind; the operator of a release with the gate defines it when it starts")
	case apierrors.IsForbidden(err):
		report.Notes = append(report.Notes, fmt.Sprintf("%s: not shown, since this user may not read it: %v", kind, err))
	default:
		return apiError(fmt.Errorf("status: %w", err), "")
	}
	return nil
}

func stackReport(stack *v1alpha1.GPUStack) *v1alpha1.StackReport {
	report := &v1alpha1.StackReport{Version: stack.Spec.Version, Ready: string(metav1.ConditionUnknown), Nodes: stack.Status.Nodes, Validated: stack.Status.Validated, Pools: stack.Status.Pools}
	if ready := meta.FindStatusCondition(stack.Status.Conditions, "Ready"); ready != nil {
		report.Ready, report.Reason, report.Message = string(ready.Status), ready.Reason, ready.Message
	}
	return report
}

func nodeReport(node *v1alpha1.GPUNode) v1alpha1.NodeReport {
	report := v1alpha1.NodeReport{Node: node.Name, State: stateNoGate, Driver: node.Status.Driver.Version}
	gate := node.Status.Gate
	if gate == nil {
		return report
	}
	report.State, report.Since, report.By, report.Tainted = string(gate.State), gate.Since, string(gate.By), gate.Tainted
	if gate.State != v1alpha1.GateValidated {
		report.Code, report.WaitsFor = gate.Code, gate.Message
	}
	return report
}

// ended reports whether nothing more is done for an operation. One that failed and will be attempted again has not ended.
func ended(o *v1alpha1.NodeOperation) bool {
	return o.Status.Phase == v1alpha1.OperationSucceeded || o.Status.Phase == v1alpha1.OperationFailed && o.Status.NextAttempt.IsZero()
}

func operationReport(o *v1alpha1.NodeOperation) v1alpha1.OperationReport {
	report := v1alpha1.OperationReport{Name: o.Name, Node: o.Spec.Node, Kind: string(o.Spec.Kind), Phase: string(cmp.Or(o.Status.Phase, v1alpha1.OperationWaiting)),
		Message: o.Status.Message, Since: o.CreationTimestamp}
	if steps := o.Status.Steps; len(steps) > 0 && !steps[len(steps)-1].Since.IsZero() {
		report.Since = steps[len(steps)-1].Since
	}
	return report
}

// waitsFor says what a node waits for, or who validated it. starting is set before the operator has made the GPUStack.
func waitsFor(n *v1alpha1.NodeReport, starting bool) string {
	switch {
	case n.State == stateNoGate && starting:
		return noGateYet
	case n.State == stateNoGate:
		return "the gate is off"
	case n.State != string(v1alpha1.GateValidated):
		var parts []string
		for _, part := range []string{n.Code, n.WaitsFor} {
			if part != "" {
				parts = append(parts, part)
			}
		}
		return cmp.Or(strings.Join(parts, ": "), "-")
	case n.By == string(v1alpha1.GateByPod):
		return "validated by a pod"
	case n.By == string(v1alpha1.GateByAgent):
		return "validated by the agent, since the GPUs were in use"
	case n.By == string(v1alpha1.GateByTimeout):
		return "not validated: opened since no operator did it in time (gate.onTimeout: open)"
	}
	return "validated"
}

// statusHead returns the head of the table of nodes.
func statusHead(wide bool) []string {
	head := []string{"NODE", "STATE", "DRIVER", "SINCE", "WAITS FOR"}
	if wide {
		head = slices.Insert(head, len(head)-1, "VALIDATED BY", "TAINTED")
	}
	return head
}

// statusRow returns the row of a node.
func statusRow(n *v1alpha1.NodeReport, now time.Time, wide, starting bool) []string {
	row := []string{n.Node, n.State, cmp.Or(n.Driver, "-"), since(n.Since, now)}
	if wide {
		row = append(row, cmp.Or(n.By, "-"), strconv.FormatBool(n.Tainted))
	}
	return append(row, waitsFor(n, starting))
}

// statusTable prints the report for people.
func statusTable(w io.Writer, report *v1alpha1.StatusReport, now time.Time, view *print.Flags) error {
	var rows [][]string
	for i := range report.Nodes {
		rows = append(rows, statusRow(&report.Nodes[i], now, view.IsWide(), withoutStack(report)))
	}
	if view.RowsOnly() {
		return view.Table(w, nil, rows)
	}
	var errs []error
	line := func(text string) {
		_, err := fmt.Fprintln(w, term.Clean(text))
		errs = append(errs, err)
	}
	line(stackLine(report))
	if len(rows) > 0 {
		line("")
		errs = append(errs, term.Table(w, statusHead(view.IsWide()), rows))
	}
	rows = nil
	for i := range report.Operations {
		o := &report.Operations[i]
		rows = append(rows, []string{o.Name, o.Node, o.Kind, o.Phase, since(o.Since, now), cmp.Or(o.Message, "-")})
	}
	if len(rows) > 0 {
		line("")
		errs = append(errs, term.Table(w, []string{"OPERATION", "NODE", "KIND", "PHASE", "SINCE", "MESSAGE"}, rows))
	}
	for i, note := range report.Notes {
		if i == 0 {
			line("")
		}
		line("note: " + note)
	}
	return errors.Join(errs...)
}

// stackLine is the line about the whole cluster. Without a GPUStack it counts the nodes.
func stackLine(report *v1alpha1.StatusReport) string {
	s := report.Stack
	if s == nil {
		validated := 0
		for i := range report.Nodes {
			if report.Nodes[i].State == string(v1alpha1.GateValidated) {
				validated++
			}
		}
		return fmt.Sprintf("Berth: %d of %d nodes are validated", validated, len(report.Nodes))
	}
	text := fmt.Sprintf("Berth %s: %d of %d nodes are validated", s.Version, s.Validated, s.Nodes)
	if s.Reason == "" {
		return text + "; the operator has not reported yet"
	}
	text += "; " + s.Reason
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

// since is how long ago something was; "-" where that is not known.
func since(at metav1.Time, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(at.Time)))
}
