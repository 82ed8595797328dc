package podgroups

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthPodGroups"

// Deps are what a Factory needs.
type Deps struct {
	// Model is what pods are placed by.
	Model *model.Model
	// Policy returns the policy of a profile.
	Policy func(profile string) string
	// Levels returns the levels of topology that annotations can name.
	Levels func() gangplan.Levels
	// Hold sets what is held against pods for gangs of other APIs, and what they can use of nodes where places are reserved.
	Hold func(q *gangplanner.Question, pods []*v1.Pod)
	// Ready returns when the GPUs of the nodes are known, or have been waited for long enough.
	Ready func(context.Context)
	// Waits notes that a pod waits for devices: it is tried again when a node has more of them.
	Waits func(*v1.Pod)
	// Devices returns what gives devices to the pods of a profile; it may return nil.
	Devices func(context.Context, fwk.Handle) (gangplanner.Devices, error)
	// TopologyAware tells whether the scheduler asks for placements: the feature gate TopologyAwareWorkloadScheduling.
	TopologyAware func() bool
	// Unfit returns the status of a group that fits on none of a number of nodes, with the reason.
	Unfit func(nodes int, reason string) *fwk.Status
}

// Factory makes the plugins of a scheduler, one per profile.
type Factory struct {
	deps Deps
}

// NewFactory returns a factory.
func NewFactory(deps Deps) *Factory { return &Factory{deps} }

// Plugin is the plugin of one profile.
type Plugin struct {
	Deps
	handle  fwk.Handle
	planner gangplanner.Planner
	// topologyAware tells whether the scheduler asks for placements.
	topologyAware bool
}

var (
	_ fwk.PlacementGeneratePlugin  = (*Plugin)(nil)
	_ fwk.PlacementScorePlugin     = (*Plugin)(nil)
	_ fwk.PlacementScoreExtensions = (*Plugin)(nil)
	_ fwk.PreFilterPlugin          = (*Plugin)(nil)
	_ fwk.FilterPlugin             = (*Plugin)(nil)
	_ fwk.PreScorePlugin           = (*Plugin)(nil)
	_ fwk.ScorePlugin              = (*Plugin)(nil)
	_ fwk.ReservePlugin            = (*Plugin)(nil)
	_ fwk.EnqueueExtensions        = (*Plugin)(nil)
	_ fwk.SignPlugin               = (*Plugin)(nil)
)

// New makes the plugin of a profile. It has the form of a factory of Kubernetes' scheduling framework. It takes no arguments: the levels of
// topology are those of BerthGangs.
func (f *Factory) New(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	p := &Plugin{Deps: f.deps, handle: handle, planner: gangplanner.Planner{Model: f.deps.Model}, topologyAware: f.deps.TopologyAware()}
	if manager := handle.SharedDRAManager(); manager != nil {
		p.planner.Claims = claims.New(manager, f.deps.Model)
		var err error
		if p.planner.Devices, err = f.deps.Devices(ctx, handle); err != nil {
			return nil, fmt.Errorf("make the plugin %s: %w", Name, err)
		}
	}
	return p, nil
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// SignPod gives members of groups no signature: each has its own node, so that results of one are of no use for the next.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if pod.Spec.SchedulingGroup != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the pod is a member of a pod group")
	}
	return nil, nil
}

// EventsToRegister returns the events after which a group that did not fit may fit: a pod ends or changes, a node changes, the group gets
// a member or another minimum. What GPUNodes say comes through Deps.Waits.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown}},
		{Event: fwk.ClusterEvent{Resource: fwk.UnscheduledPod, ActionType: fwk.Add | fwk.Delete}},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodScaleDown | fwk.UpdatePodToleration}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint}},
		{Event: fwk.ClusterEvent{Resource: fwk.PodGroup, ActionType: fwk.Add | fwk.Update}},
	}, nil
}
