package devices

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	resourcehelper "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// filterTimeout is how long the plugin looks for devices of one node for one pod: the default of its arguments.
const filterTimeout = 10 * time.Second

// handle is that of a profile with the claims of a trial.
type handle struct {
	fwk.Handle
	claims *overlay
}

// SharedDRAManager returns what the trial changes.
func (h *handle) SharedDRAManager() fwk.SharedDRAManager { return h.claims }

// ProfileName tells the index of pods that the plugin makes from that of the profile's own.
func (h *handle) ProfileName() string { return h.Handle.ProfileName() + "/trial" }

// Devices asks the plugin of one profile.
type Devices struct {
	plugin interface {
		fwk.PreFilterPlugin
		fwk.FilterPlugin
		fwk.ReservePlugin
	}
	base   fwk.SharedDRAManager
	claims *overlay
	// trial is held from the begin of a trial to its end: the plugin sees one at a time.
	trial sync.Mutex
}

// Factory makes what asks the plugin, once for each profile of a scheduler.
type Factory struct {
	mu   sync.Mutex
	made map[string]*Devices
}

// NewFactory returns a factory.
func NewFactory() *Factory { return &Factory{made: map[string]*Devices{}} }

// For returns what asks the plugin for the pods of a profile, nil where the scheduler has no devices.
func (f *Factory) For(ctx context.Context, h fwk.Handle) (gangplanner.Devices, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.made[h.ProfileName()]; d != nil {
		return d, nil
	}
	d, err := newDevices(ctx, h)
	if d == nil || err != nil {
		return nil, err
	}
	f.made[h.ProfileName()] = d
	return d, nil
}

func newDevices(ctx context.Context, h fwk.Handle) (*Devices, error) {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	base := h.SharedDRAManager()
	if base == nil || !features.EnableDynamicResourceAllocation {
		return nil, nil
	}
	d := &Devices{base: base, claims: &overlay{SharedDRAManager: base, shares: features.EnableDRAConsumableCapacity}}
	args := &config.DynamicResourcesArgs{}
	if features.EnableDRASchedulerFilterTimeout {
		args.FilterTimeout = &metav1.Duration{Duration: filterTimeout}
	}
	plugin, err := dynamicresources.New(ctx, args, &handle{h, d.claims}, features)
	if err != nil {
		return nil, fmt.Errorf("make the plugin %s for trials: %w", dynamicresources.Name, err)
	}
	made, ok := plugin.(*dynamicresources.DynamicResources)
	if !ok {
		return nil, fmt.Errorf("make the plugin %s for trials: it is a %T", dynamicresources.Name, plugin)
	}
	d.plugin = made
	return d, nil
}

// Served tells whether a DeviceClass serves an extended resource on nodes that do not offer it otherwise.
func (d *Devices) Served(name v1.ResourceName) bool {
	return util.IsDRAExtendedResourceName(name) && d.base.DeviceClassResolver().GetDeviceClass(name) != nil
}

// Needs tells whether the plugin gives devices to a pod, on some nodes at least.
func (d *Devices) Needs(pod *v1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for name, amount := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if !amount.IsZero() && d.Served(name) {
			return true
		}
	}
	return false
}

// Try begins a trial. Another one begins after its end.
func (d *Devices) Try(wait bool) gangplanner.Trial {
	switch {
	case wait:
		d.trial.Lock()
	case !d.trial.TryLock():
		return nil
	}
	d.claims.begin()
	return &trial{Devices: d}
}

// trial is one in which pods were placed.
type trial struct {
	*Devices
	// state is what the plugin knows of a pod after as many changes of the claims.
	pod     *v1.Pod
	state   fwk.CycleState
	refused *fwk.Status
	changes int
}

// End ends the trial.
func (t *trial) End() {
	t.claims.begin()
	t.trial.Unlock()
}

// Mark returns the state of the trial, Undo brings it back.
func (t *trial) Mark() int { return len(t.claims.changes) }

// Undo takes back what was placed since a mark.
func (t *trial) Undo(mark int) {
	if mark < len(t.claims.changes) {
		t.claims.undo(mark)
		t.pod = nil
	}
}

// Place gives a pod devices of a node beside the pods that have theirs, or says why that cannot be.
func (t *trial) Place(pod *v1.Pod, node fwk.NodeInfo) (refusal string) {
	ctx := context.Background()
	if t.pod != pod || t.changes != len(t.claims.changes) {
		t.pod, t.state, t.changes = pod, framework.NewCycleState(), len(t.claims.changes)
		_, t.refused = t.plugin.PreFilter(ctx, t.state, pod, nil)
	}
	if t.refused.IsSkip() {
		return ""
	}
	if !t.refused.IsSuccess() {
		return reason(t.refused)
	}
	if status := t.plugin.Filter(ctx, t.state, pod, node); !status.IsSuccess() {
		return reason(status)
	}
	if status := t.plugin.Reserve(ctx, t.state, pod, node.Node().Name); !status.IsSuccess() {
		return reason(status)
	}
	t.claims.reserve(pod)
	t.pod = nil
	return ""
}

func reason(status *fwk.Status) string { return strings.Join(status.Reasons(), ", ") }
