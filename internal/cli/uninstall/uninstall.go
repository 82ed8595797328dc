// Package uninstall removes Berth from a cluster: what runs, what agents made on the nodes, and the objects of the API, whether the
// Helm release is still there or not.
//
// It guarantees that it can be ended at any point and run again: before it deletes the agent's DaemonSet it stores all that the later
// steps need in a DaemonSet of its own, and it deletes that only when nothing depends on it any more. It writes only to objects that
// Berth made, and to what Berth wrote in Nodes. It leaves the namespace and the other objects of the Helm release.
package uninstall

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	// DefaultNamespace is where Berth is installed when neither the user nor a GPUStack says otherwise.
	DefaultNamespace = "berth-system"
	// Name is that of the DaemonSet that cleans the nodes.
	Name = "berth-uninstall"
	// interval is the time between two looks at what is waited for.
	interval = time.Second
	// fieldManager is the field manager of what is written.
	fieldManager = "berth"
)

// Deps are what a removal works with.
type Deps struct {
	Client dynamic.Interface
	Clock  clock.Clock
	// Out gets a line per step and node.
	Out io.Writer
}

// Options are what the user wants.
type Options struct {
	// Namespace is that of the release; empty means that of the GPUStack, or DefaultNamespace.
	Namespace string
	// Image is that of the pods that clean the nodes; empty means that of the agent. With an image all nodes are cleaned when neither a
	// DaemonSet nor a GPUNode says which nodes had an agent.
	Image string
	// Force goes on where nodes cannot be cleaned, and under active NodeOperations.
	Force bool
	// Timeout bounds each wait.
	Timeout time.Duration
	// Confirm is asked once, before the first write; nil means yes.
	Confirm func(plan string) error
}

// remover is one removal.
type remover struct {
	Deps
	Options
	found survey
	// skipped are the nodes whose files were not removed, with the reason.
	skipped []string
	// printed are the lines that are printed once.
	printed map[string]bool
}

// NotDoneError says what in the cluster prevents the removal, or what it has not removed, with the fix.
type NotDoneError struct{ text string }

func (e *NotDoneError) Error() string { return e.text }

func notDone(format string, args ...any) error { return &NotDoneError{fmt.Sprintf(format, args...)} }

// Run removes Berth from the cluster.
func Run(ctx context.Context, deps Deps, options Options) error {
	r := &remover{Deps: deps, Options: options, printed: map[string]bool{}}
	if err := r.survey(ctx); err != nil {
		return err
	}
	if err := r.mayStart(); err != nil {
		return err
	}
	// Each step does what it finds to do, and none of them assumes that an earlier one has run in this process.
	for _, step := range []func(context.Context) error{
		r.prepareHosts,    // From here on the agents' DaemonSet is not needed.
		r.stopOperator,    // It would make again what is deleted.
		r.stopValidations, //
		r.stopAgents,      // The same.
		r.cleanHosts,      //
		r.cleanNodes,      //
		r.deleteNodeState, // As long as there is a GPUNode, a repetition cleans its node again.
		r.deleteHosts,     //
		r.stopScheduler,   // Where it replaces the cluster's, nothing else would schedule the pods that clean the nodes.
		r.deleteObjects,   //
		r.deleteNamespace, //
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.farewell(ctx)
	if len(r.skipped) > 0 && !r.Force {
		image, err := r.image()
		if err != nil {
			return err
		}
		return notDone("the files of %d nodes were not removed:\n  %s\nfix: when they are ready, run: berth uninstall --all -n %s --image %s",
			len(r.skipped), strings.Join(r.skipped, "\n  "), r.Namespace, image)
	}
	return nil
}

// mayStart refuses a removal, or asks the user.
func (r *remover) mayStart() error {
	var active []string
	for i := range r.found.operations {
		o := &r.found.operations[i]
		switch phase := cmp.Or(o.Status.Phase, v1alpha1.OperationWaiting); phase {
		case v1alpha1.OperationWaiting, v1alpha1.OperationActive:
			active = append(active, fmt.Sprintf("%s: %s of node %s, %s %s", o.Name, o.Spec.Kind, o.Spec.Node, phase, o.Status.Message))
		}
	}
	if len(active) > 0 && !r.Force {
		return notDone("%d NodeOperations are active:\n  %s\nfix: wait until they have ended (berth status), or give --force to end them where they are",
			len(active), strings.Join(active, "\n  "))
	}
	for _, operation := range active {
		r.print("warning: ends the NodeOperation %s", operation)
	}
	if r.needsHosts() {
		if _, err := r.image(); err != nil {
			return err
		}
		if level := r.found.podSecurity; level == "baseline" || level == "restricted" {
			return notDone("the namespace %s enforces the Pod Security level %s, which refuses the pods that clean the nodes\n%s", r.Namespace, level, r.securityFix())
		}
	}
	if r.Confirm == nil {
		return nil
	}
	return r.Confirm(r.plan())
}

func (r *remover) securityFix() string {
	return "fix: kubectl label --overwrite namespace " + r.Namespace + " pod-security.kubernetes.io/enforce=privileged"
}

func (r *remover) plan() string {
	return fmt.Sprintf("This removes Berth from the cluster: what runs in the namespace %s, its files and labels on %d nodes, and all GPUNodes, GPUQuotas and the GPUStack.\n"+
		"Running pods keep their GPUs; those that share one by MPS end.", r.Namespace, len(r.found.nodes))
}

// print prints a line.
func (r *remover) print(format string, args ...any) {
	fmt.Fprintf(r.Out, format+"\n", args...)
}

// once prints a line, unless it was printed before.
func (r *remover) once(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !r.printed[text] {
		r.printed[text] = true
		fmt.Fprintln(r.Out, text)
	}
}

// await calls done until it is true. waiting says what is waited for when the time has passed.
func (r *remover) await(ctx context.Context, done func(context.Context) (bool, error), waiting func() string) error {
	deadline := r.Clock.Now().Add(r.Timeout)
	for {
		ok, err := done(ctx)
		if err != nil || ok {
			return err
		}
		if !r.Clock.Now().Before(deadline) {
			return notDone("after %s: %s\nfix: remove the cause and run the command again; it goes on where it ended", r.Timeout, waiting())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.Clock.After(interval):
		}
	}
}
