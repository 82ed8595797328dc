package preemption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	defaults "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthPreemption"

// Nodes knows the GPUs of the nodes and which pods hold them, as of the scheduling cycle. Its methods may be called concurrently.
type Nodes interface {
	// Requests returns what a pod requests, as fleetview.Resources.Requests does: at least one shape, of which the first has the CPU and
	// memory. ResourceClaims are not part of it.
	Requests(pod *v1.Pod) []fleet.Shape
	// Node returns a node with all its pods, and what of its GPUs is free once pods have ended. The result is false for a node that is
	// not known; the in-tree choice is used for it. Neither result is changed.
	Node(name string) (*fleet.Node, []fleetview.Held, bool)
}

// Deps is what the plugin needs.
type Deps struct {
	// Nodes returns the nodes for a profile. It is called once for each.
	Nodes func(fwk.Handle) (Nodes, error)
	// Refusal returns why a pod group was refused, for its condition; empty for nothing. It may be nil.
	Refusal func(fwk.PodGroupCycleState) string
}

// Plugin is DefaultPreemption with another choice for pods with GPUs.
type Plugin struct {
	*defaultpreemption.DefaultPreemption
	handle    fwk.Handle
	nodes     Nodes
	refusal   func(fwk.PodGroupCycleState) string
	evaluator *preemption.Evaluator // for pods with GPUs
	features  feature.Features
	cel       *cel.Cache
}

var (
	_ fwk.PostFilterPlugin         = (*Plugin)(nil)
	_ fwk.PodGroupPostFilterPlugin = (*Plugin)(nil)
	_ fwk.PreEnqueuePlugin         = (*Plugin)(nil)
	_ fwk.EnqueueExtensions        = (*Plugin)(nil)
)

// New returns the factory of the plugin. Its arguments are those of DefaultPreemption.
func New(deps Deps) frameworkruntime.PluginFactory {
	return func(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		return newPlugin(ctx, deps, object, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	}
}

func newPlugin(ctx context.Context, deps Deps, object runtime.Object, handle fwk.Handle, features feature.Features) (fwk.Plugin, error) {
	if deps.Nodes == nil || handle == nil {
		return nil, errors.New("make the plugin BerthPreemption: the nodes or the handle of the framework are missing")
	}
	args, err := arguments(object)
	if err != nil {
		return nil, fmt.Errorf("read the arguments of the plugin BerthPreemption: %w", err)
	}
	inTree, err := defaultpreemption.New(ctx, args, handle, features)
	if err != nil {
		return nil, fmt.Errorf("make the plugin BerthPreemption: %w", err)
	}
	nodes, err := deps.Nodes(handle)
	if err != nil {
		return nil, fmt.Errorf("make the plugin BerthPreemption: %w", err)
	}
	p := &Plugin{DefaultPreemption: inTree, handle: handle, nodes: nodes, refusal: deps.Refusal, features: features, cel: newCELCache(features)}
	p.evaluator = preemption.NewEvaluator(Name, handle, &chooser{inTree, p}, inTree.Executor)
	return p, nil
}

// arguments returns those of DefaultPreemption, with its defaults.
func arguments(object runtime.Object) (*config.DefaultPreemptionArgs, error) {
	if args, ok := object.(*config.DefaultPreemptionArgs); ok {
		return args, nil
	}
	external := &configv1.DefaultPreemptionArgs{}
	if object != nil {
		if err := frameworkruntime.DecodeInto(object, external); err != nil {
			return nil, err
		}
	}
	defaults.SetDefaults_DefaultPreemptionArgs(external)
	args := &config.DefaultPreemptionArgs{}
	if err := defaults.Convert_v1_DefaultPreemptionArgs_To_config_DefaultPreemptionArgs(external, args, nil); err != nil {
		return nil, err
	}
	return args, nil
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// PostFilter ends pods so that the pod fits on a node, or says why that does not help.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, reader fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	requests, pending := p.requests(pod)
	// A pod that has a node waits for a resize there, and has its GPUs.
	if pod.Spec.NodeName != "" || !slices.ContainsFunc(requests, func(s fleet.Shape) bool { return s.GPUs > 0 }) {
		return p.DefaultPreemption.PostFilter(ctx, state, pod, reader)
	}
	defer metrics.PreemptionAttempts.Inc()
	a := &attempt{requests: requests, claims: pending, scores: map[string]fleet.Score{}, devices: sync.OnceValues(p.readDevices)}
	if a.claims {
		reader = claimReader{reader}
	}
	result, status := p.evaluator.Preempt(withAttempt(ctx, a), state, pod, reader)
	if message := status.Message(); message != "" {
		return result, fwk.NewStatus(status.Code(), "preemption: "+message)
	}
	return result, status
}

// PodGroupPostFilter ends pods so that a pod group fits, as DefaultPreemption does, and adds why the group was refused to its condition.
// DynamicResources fails with an error where its PreFilter has run for no member, as for a group that was refused before its members were
// evaluated (1.37.1); it has nothing to do then, and is not asked.
func (p *Plugin) PodGroupPostFilter(ctx context.Context, state fwk.PodGroupCycleState, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	result, status := p.DefaultPreemption.PodGroupPostFilter(ctx, state, group, schedule)
	if status.IsError() {
		return result, status
	}
	code, reasons := status.Code(), status.Reasons()
	if _, err := state.Read(names.DynamicResources); err != nil && code == fwk.Unschedulable {
		code = fwk.UnschedulableAndUnresolvable
	}
	if p.refusal != nil {
		if text := p.refusal(state); text != "" {
			reasons = append([]string{text}, reasons...)
		}
	}
	return result, fwk.NewStatus(code, reasons...)
}

// requests returns what a pod requests, with a shape for the devices of its claims that are not allocated, and whether there are such
// claims. Whether these devices are GPUs is not known here; the filter and the allocator decide on what is chosen.
func (p *Plugin) requests(pod *v1.Pod) ([]fleet.Shape, bool) {
	requests := p.nodes.Requests(pod)
	claimed, pending := p.claimed(pod)
	if claimed > 0 {
		requests = append(slices.Clone(requests), fleet.Shape{Resource: fleetview.ResourceOfClaims, GPUs: int32(min(claimed, fleet.MaxGPUs))})
	}
	return requests, pending
}

// attempt is one run of PostFilter for a pod with GPUs.
type attempt struct {
	requests []fleet.Shape
	claims   bool // whether a claim of the pod waits for its allocation
	devices  func() (*devices, error)

	mu     sync.Mutex
	scores map[string]fleet.Score // of what the pod would get, by node
}

func (a *attempt) setScore(node string, score fleet.Score) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.scores[node] = score
}

func (a *attempt) score(node string) fleet.Score {
	a.mu.Lock()
	defer a.mu.Unlock()
	if score, known := a.scores[node]; known {
		return score
	}
	return fleet.NoFit
}

type attemptKey struct{}

func withAttempt(ctx context.Context, a *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// attemptOf returns the run that a context belongs to.
func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}
