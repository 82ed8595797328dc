package placement

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthPlacement"

// firstWait is how long the first decision waits for the GPUNodes.
const firstWait = 5 * time.Second

// Deps are what a Factory needs.
type Deps struct {
	// Register makes the scheduler serve a metric.
	Register func(basemetrics.Registerable) error
}

// Factory makes the plugins of a scheduler, one per profile. They share one model.
type Factory struct {
	deps  Deps
	model *model.Model
	check atomic.Pointer[func(model.Check)]

	first sync.Once

	mu       sync.Mutex
	follower *follower
	waiting  *waiting
	policies map[string]string // by profile
}

// NewFactory returns a factory.
func NewFactory(deps Deps) *Factory {
	f := &Factory{deps: deps, policies: map[string]string{}}
	f.model = model.New(model.Deps{Checked: func(c model.Check) {
		if check := f.check.Load(); check != nil {
			(*check)(c)
		}
	}})
	return f
}

// Model returns what all plugins of the factory decide by.
func (f *Factory) Model() *model.Model { return f.model }

// Policy returns the policy of a profile: that of its plugin, or pack where it has none.
func (f *Factory) Policy(profile string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.policies[profile], fleet.PolicyPack)
}

// Ready returns when the GPUNodes are known. The first call waits for them, up to firstWait.
func (f *Factory) Ready(ctx context.Context) {
	f.first.Do(func() {
		f.mu.Lock()
		follower := f.follower
		f.mu.Unlock()
		if follower != nil {
			follower.wait(ctx, firstWait)
		}
	})
}

// Waits notes that a pod waits for devices: it is tried again when a node has more of them.
func (f *Factory) Waits(pod *v1.Pod) {
	f.mu.Lock()
	list := f.waiting
	f.mu.Unlock()
	if requests := f.model.Requests(pod); list != nil && requests[0].GPUs > 0 {
		list.add(pod, requests, list.seen())
	}
}

// Plugin is the plugin of one profile.
type Plugin struct {
	handle  fwk.Handle
	policy  string
	model   *model.Model
	ready   func(context.Context)
	waiting *waiting
	claims  *claims.Scorer
}

var (
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ScoreExtensions   = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
)

// New makes the plugin of a profile. It has the form of a factory of Kubernetes' scheduling framework.
func (f *Factory) New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := parseArgs(object)
	if err != nil {
		return nil, err
	}
	if err := f.start(ctx, handle); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.policies[handle.ProfileName()] = args.Policy
	f.mu.Unlock()
	p := &Plugin{handle: handle, policy: args.Policy, model: f.model, ready: f.Ready, waiting: f.waiting}
	if manager := handle.SharedDRAManager(); manager != nil {
		p.claims = claims.New(manager, f.model)
	}
	return p, nil
}

// start makes what the profiles share, once.
func (f *Factory) start(ctx context.Context, handle fwk.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting != nil {
		return nil
	}
	logger := slog.New(logHandler(ctx))
	counts, err := newMetrics(f.deps.Register)
	if err != nil {
		return fmt.Errorf("make the plugin %s: %w", Name, err)
	}
	check := counts.checker(logger)
	f.check.Store(&check)
	made := newWaiting(handle, f.model)
	if _, err := handle.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(made.handler()); err != nil {
		return fmt.Errorf("make the plugin %s: follow pods: %w", Name, err)
	}
	if config := handle.KubeConfig(); config != nil {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("make the plugin %s: %w", Name, err)
		}
		f.follower, err = newFollower(client, made, logger)
		if err != nil {
			return fmt.Errorf("make the plugin %s: %w", Name, err)
		}
		go f.follower.run(ctx)
	}
	f.waiting = made
	return nil
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// cycle is what is known of the pod in a scheduling cycle.
type cycle struct {
	requests []fleet.Shape
	scores   []fleet.Score
	// seen is what GPUNodes had said when the cycle began.
	seen uint64
	// gpus is true for a pod that requests devices of a resource, claims for one that requests them through ResourceClaims.
	gpus   bool
	claims bool
	// predicted are the GPUs that were predicted for a node. A pod group cycle reserves each member, undoes that, and reserves it again
	// when the model has the state after all of them.
	predicted [][]string
	node      string
}

// Clone returns the cycle itself, which changes only in Reserve.
func (c *cycle) Clone() fwk.StateData { return c }

// read returns the cycle of a pod, or nil.
func read(state fwk.CycleState) *cycle {
	data, err := state.Read(Name)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

// PreFilter brings the model in line with the snapshot and scores all nodes for the pod.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	p.ready(ctx)
	seen := p.waiting.seen()
	p.model.Sync(nodes)
	c := &cycle{requests: p.model.Requests(pod), seen: seen}
	c.gpus = c.requests[0].GPUs > 0
	if err := p.score(ctx, c, pod, nodes); err != nil {
		return nil, fwk.AsStatus(err)
	}
	state.Write(Name, c)
	if !c.gpus {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// score scores all nodes for the pod.
func (p *Plugin) score(ctx context.Context, c *cycle, pod *v1.Pod, nodes []fwk.NodeInfo) (err error) {
	if !c.gpus && p.claims != nil && len(pod.Spec.ResourceClaims) > 0 {
		if list := p.claims.Of(pod); len(list) > 0 {
			c.claims = true
			p.model.See(pod.UID, []fleet.Shape{claims.Shape(c.requests[0], list)})
			c.scores, err = p.claims.Scores(ctx, p.policy, c.requests[0], list, nodes, nil)
			return err
		}
	}
	if c.gpus {
		p.model.See(pod.UID, c.requests)
	}
	c.scores, err = p.model.Scores(p.policy, c.requests, nil)
	return err
}

// PreFilterExtensions returns nil: Filter looks at the pods of the node that it gets.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter refuses a node on which the kubelet would not start the pod although the counts of the Node say so, or where the pod would share
// a GPU that it must not share.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := read(state)
	if c == nil || !c.gpus {
		return nil
	}
	if text := claims.Unbindable(p.handle.SharedDRAManager(), pod, node); text != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, text)
	}
	if i, ok := p.model.Current(node); ok {
		if i < len(c.scores) && c.scores[i] >= 0 {
			return nil
		}
		return refusal(p.model.View(i), c.requests)
	}
	// Pods were added to the node or removed from it to see what would be then.
	view := p.model.Suppose(node)
	return refusal(&view, c.requests)
}

// refusal returns the status of a node on which a pod does not fit, or nil if that is not for this plugin to say.
func refusal(v *fleetview.View, requests []fleet.Shape) *fwk.Status {
	if v.Counted {
		return nil
	}
	reason := firstLack(v, requests)
	switch reason.Lack {
	case fleet.Many:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node refuses requests for more than one "+reason.Resource)
	case fleet.Health:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "too few usable "+reason.Resource)
	case fleet.Share:
		return fwk.NewStatus(fwk.Unschedulable, "too few free "+reason.Resource)
	case fleet.Contention:
		return fwk.NewStatus(fwk.Unschedulable, "GPU has a pod that needs much memory bandwidth")
	}
	return nil
}

// firstLack returns why the requests do not all fit.
func firstLack(v *fleetview.View, requests []fleet.Shape) fleet.Reason {
	f, err := fleet.New([]fleet.Node{v.Node}, 0)
	if err != nil {
		return fleet.Reason{}
	}
	mark := f.Checkpoint()
	defer f.Rollback(mark)
	for _, s := range requests {
		if reason := fleet.Fit(f.Node(0), s); reason.Lack != fleet.None {
			return reason
		}
		for _, piece := range f.Node(0).Pieces(s) {
			if err := f.Place(fleet.Op{GPUs: fleet.Choose(f.Node(0), &piece).GPUs, Shape: piece}); err != nil {
				return fleet.Reason{}
			}
		}
	}
	return fleet.Reason{}
}

// Reserve predicts the GPUs that the pod gets.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	p.waiting.remove(pod.UID)
	p.touch(pod, node)
	c := read(state)
	if c == nil || !c.gpus {
		return nil
	}
	i, ok := p.model.Index(node)
	if !ok {
		return nil
	}
	if c.node != node {
		c.node, c.predicted = node, p.model.Predict(p.policy, i, c.requests)
	}
	if c.predicted != nil {
		p.model.Assume(pod.UID, node, c.requests, c.predicted)
	}
	return nil
}

// Unreserve ends the prediction.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) {
	p.touch(pod, node)
	p.model.Forget(pod.UID)
}

// touch has the model compute a node again. A pod group cycle adds its pods to nodes of the snapshot and takes them from there, and the
// generation of the node stays the same.
func (p *Plugin) touch(pod *v1.Pod, node string) {
	if pod.Spec.SchedulingGroup != nil {
		p.model.Touch(node)
	}
}

// Holdings returns a node with the GPUs that its pods have, or are predicted to get, by UID. It is for the scheduling cycle.
func (f *Factory) Holdings(node string) (*fleetview.View, bool) {
	i, ok := f.model.Index(node)
	if !ok {
		return nil, false
	}
	return f.model.View(i), true
}

// Requests returns what a pod requests of GPUs. It is for the scheduling cycle.
func (f *Factory) Requests(pod *v1.Pod) []fleet.Shape { return f.model.Requests(pod) }

// logHandler writes to the scheduler's log.
func logHandler(ctx context.Context) slog.Handler {
	return logrHandler(klog.FromContext(ctx).WithName(Name))
}

// podKey is how the queue names a pod.
func podKey(pod *v1.Pod) string {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}.String()
}
