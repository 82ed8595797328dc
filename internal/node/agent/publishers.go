package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// stateTimeout bounds how long SetMIGState waits for the API server.
const stateTimeout = 2 * time.Second

const (
	// writeSpread is the time in which the agents of a cluster write their GPUNodes when the definition is made again: of 1,000 nodes 200
	// each second.
	writeSpread = 5 * time.Second
	// longWatch is how long a watch lasts that has not failed.
	longWatch = time.Minute
)

// workersDeps are what workers are made of.
type workersDeps struct {
	// Client is nil for a standalone agent.
	Client   dynamic.Interface
	NodeName string
	Retry    nodeapi.Retry
	// Conditions are those of the GPUNode.
	Conditions *nodeapi.Conditions
	// Report replaces the problems of a source by an error, or by none. It must not block.
	Report func(source, code string, err error)
	Log    *slog.Logger
}

// workers write this node's objects to the API server, each object with a worker of its own: the Node's conditions and its taints, the
// label of the MIG state, and the GPUNode with its definition.
//
// A write that hangs or fails delays none of another object; a failed write is repeated and reported as a problem. Setting a value waits
// for nothing, except for a MIG state whose caller asks to wait a moment for the write. A tick restores what others have changed.
type workers struct {
	deps workersDeps
	// The publishers are nil without an API server.
	condition *nodeapi.Publisher[nodeapi.NodeCondition]
	taint     *nodeapi.Publisher[bool]
	ready     *nodeapi.Publisher[nodeapi.NodeCondition]
	gateTaint *nodeapi.Publisher[nodeapi.GateTaint]
	migState  *nodeapi.Publisher[string]
	gpuNode   *nodeapi.Publisher[*v1alpha1.GPUNode]
}

// newWorkers makes workers; it touches nothing.
func newWorkers(deps workersDeps) *workers {
	w := &workers{deps: deps}
	if deps.Client == nil {
		return w
	}
	report := func(source, code string) func(error) {
		return func(err error) { deps.Report(source, code, err) }
	}
	w.condition = nodeapi.NewNodeCondition(deps.Client, deps.Retry, report("node-condition", "NODE_CONDITION"), deps.Log)
	w.taint = nodeapi.NewNodeTaint(deps.Client, deps.Retry, report("node-taint", "NODE_CONDITION"), deps.Log)
	w.ready = nodeapi.NewNodeReady(deps.Client, deps.Retry, report("gate-condition", "NODE_CONDITION"), deps.Log)
	w.gateTaint = nodeapi.NewGateTaint(deps.Client, deps.Retry, report("gate-taint", "NODE_CONDITION"), deps.Log)
	w.migState = nodeapi.NewMIGState(deps.Client, configwatch.LabelMIGState, deps.Retry, report("mig-state-label", "NODE_LABEL"), deps.Log)
	object := gpunode.NewObject(deps.Client, deps.NodeName)
	w.gpuNode = nodeapi.NewPublisher(nodeapi.PublisherDeps[*v1alpha1.GPUNode]{
		Read:   object.Read,
		Write:  object.Write,
		Equal:  gpunode.Equal,
		Report: report("gpunode", "GPUNODE_WRITE"),
		Retry:  deps.Retry,
		Log:    deps.Log,
	})
	return w
}

// Run writes what is set until ctx ends. Without an API server it returns at once.
func (w *workers) Run(ctx context.Context) error {
	if w.deps.Client == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{w.condition.Run, w.taint.Run, w.ready.Run, w.gateTaint.Run, w.migState.Run, w.gpuNode.Run, w.followDefinition} {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// followDefinition reports that the definition of GPUNode is missing or old while it is, and has the GPUNode written again when the
// definition is made again, with which the API server has deleted it. Without the permission to watch it ends when the definition is there.
func (w *workers) followDefinition(ctx context.Context) error {
	f := definitionFollower{workers: w}
	for ctx.Err() == nil {
		permitted := true
		err := w.deps.Retry.Do(ctx, func(ctx context.Context) (done bool) {
			began := w.deps.Retry.Clock.Now()
			err := gpunode.FollowDefinition(ctx, w.deps.Client, func(ctx context.Context) error {
				if err := f.check(ctx); errors.Is(err, gpunode.ErrUnread) {
					return err
				}
				return nil // It is reported, and changes with the definition.
			})
			permitted = !errors.Is(err, gpunode.ErrNotPermitted)
			if err != nil && permitted && !f.checked && ctx.Err() == nil {
				w.deps.Report("definition", "GPUNODE_DEFINITION", err)
			}
			// The API server ends each watch after some time.
			return !permitted || w.deps.Retry.Clock.Since(began) >= longWatch
		})
		if err == nil && !permitted {
			return w.deps.Retry.Do(ctx, func(ctx context.Context) (done bool) {
				err := f.check(ctx)
				return err == nil || errors.Is(err, gpunode.ErrNotPermitted)
			})
		}
	}
	return ctx.Err()
}

// definitionFollower knows the definition of GPUNode that was seen last.
type definitionFollower struct {
	*workers
	checked bool
	served  types.UID
}

// check reports what is wrong with the definition. While it cannot be read, what was seen last counts.
func (f *definitionFollower) check(ctx context.Context) error {
	served, err := gpunode.CheckDefinition(ctx, f.deps.Client)
	if errors.Is(err, gpunode.ErrUnread) && f.checked {
		return err
	}
	f.deps.Report("definition", "GPUNODE_DEFINITION", err)
	if errors.Is(err, gpunode.ErrUnread) {
		return err
	}
	if served != "" && served != f.served && f.checked && f.deps.Retry.Spread(ctx, writeSpread) == nil {
		f.gpuNode.Recheck()
	}
	f.checked = true
	if served != "" {
		f.served = served
	}
	return err
}

// SetCondition sets the Node's condition GPUsHealthy.
func (w *workers) SetCondition(condition nodeapi.NodeCondition) { publish(w.condition, condition) }

// SetTaint sets whether the Node has the taint of an unhealthy GPU.
func (w *workers) SetTaint(tainted bool) { publish(w.taint, tainted) }

// SetReady sets the condition GPUsReady of the Node and of the GPUNode; one without a reason removes it.
func (w *workers) SetReady(condition nodeapi.NodeCondition) {
	publish(w.ready, condition)
	if condition.Reason == "" {
		w.deps.Conditions.Clear(v1alpha1.NodeConditionReady)
		return
	}
	status := metav1.ConditionFalse
	if condition.OK {
		status = metav1.ConditionTrue
	}
	w.deps.Conditions.Set(v1alpha1.NodeConditionReady, status, condition.Reason, condition.Message)
}

// SetGateTaint sets whether the Node has the taint of the gate.
func (w *workers) SetGateTaint(taint nodeapi.GateTaint) { publish(w.gateTaint, taint) }

// AwaitGateTaint sets the taint and returns when the Node has it, or with the error of ctx when that ends first. Without an API server it
// returns at once.
func (w *workers) AwaitGateTaint(ctx context.Context, taint nodeapi.GateTaint) error {
	if w.gateTaint == nil {
		return nil
	}
	for {
		// The publisher reports errors, and repeats the write after a pause.
		if err := w.gateTaint.PublishAndWait(ctx, taint); err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// GateTaintWritten reports whether the Node has what SetGateTaint was given last. Without an API server it always does.
func (w *workers) GateTaintWritten() bool { return w.gateTaint == nil || w.gateTaint.Written() }

// SetGPUNode sets the GPUNode, which must not be changed afterwards.
func (w *workers) SetGPUNode(object *v1alpha1.GPUNode) { publish(w.gpuNode, object) }

// SetMIGState sets the label nvidia.com/mig.config.state; an empty state removes it. With wait it returns when the label says so,
// after a failed attempt, or after two seconds.
func (w *workers) SetMIGState(ctx context.Context, state string, wait bool) {
	if !wait || w.migState == nil {
		publish(w.migState, state)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	_ = w.migState.PublishAndWait(ctx, state) // The publisher reports errors, and repeats the write.
}

// SetMIGCondition sets the condition MIGApplied of the GPUNode; an empty status removes it.
func (w *workers) SetMIGCondition(status metav1.ConditionStatus, reason, message string) {
	if status == "" {
		w.deps.Conditions.Clear(nodeapi.ConditionMIG)
		return
	}
	w.deps.Conditions.Set(nodeapi.ConditionMIG, status, reason, message)
}

// publish sets a value of a publisher, which may be nil.
func publish[T any](p *nodeapi.Publisher[T], value T) {
	if p != nil {
		p.Publish(value)
	}
}
