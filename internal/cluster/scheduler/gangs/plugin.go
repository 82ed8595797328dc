package gangs

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthGangs"

// Deps are what a Factory needs.
type Deps struct {
	// Model is what pods are placed by.
	Model *model.Model
	// Policy returns the policy of a profile.
	Policy func(profile string) string
	// Devices returns what gives devices to the pods of a profile; it may return nil.
	Devices func(context.Context, fwk.Handle) (gangplanner.Devices, error)
	Clock   clock.WithTicker
	Limits  Limits
}

// Factory makes the plugins of a scheduler, one per profile. They share the gangs.
type Factory struct {
	deps Deps

	mu     sync.Mutex
	gangs  *registry
	synced cache.InformerSynced
}

// NewFactory returns a factory.
func NewFactory(deps Deps) *Factory { return &Factory{deps: deps} }

// Plugin is the plugin of one profile.
type Plugin struct {
	handle fwk.Handle
	model  *model.Model
	gangs  *registry
	// planner plans gangs.
	planner gangplanner.Planner
	policy  func() string
	// binds is true once Bind was called: it comes before the plugin that binds.
	binds atomic.Bool
	// synced tells whether the registry has all pods; it is waited for once.
	synced cache.InformerSynced
	first  sync.Once
	// ended ends with the scheduler.
	ended context.Context
	// start starts what runs beside the scheduling cycles.
	start func(func())
}

// firstWait is how long the first decision waits for the pods.
const firstWait = 5 * time.Second

// wait waits until all pods are known: what is planned beside bound members must not be planned before these are known.
func (p *Plugin) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	cache.WaitForCacheSync(ctx.Done(), p.synced)
}

var (
	_ fwk.QueueSortPlugin   = (*Plugin)(nil)
	_ fwk.PreEnqueuePlugin  = (*Plugin)(nil)
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.PermitPlugin      = (*Plugin)(nil)
	_ fwk.BindPlugin        = (*Plugin)(nil)
	_ fwk.PostBindPlugin    = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
)

// New makes the plugin of a profile. It has the form of a factory of Kubernetes' scheduling framework.
func (f *Factory) New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := parseArgs(object)
	if err != nil {
		return nil, err
	}
	if err := f.start(ctx, args, handle); err != nil {
		return nil, fmt.Errorf("make the plugin %s: %w", Name, err)
	}
	profile := handle.ProfileName()
	p := &Plugin{
		handle:  handle,
		model:   f.deps.Model,
		gangs:   f.gangs,
		planner: gangplanner.Planner{Model: f.deps.Model},
		synced:  f.synced,
		ended:   ctx,
		start:   func(work func()) { go work() },
		policy:  func() string { return f.deps.Policy(profile) },
	}
	p.gangs.serve(profile)
	if manager := handle.SharedDRAManager(); manager != nil {
		p.planner.Claims = claims.New(manager, f.deps.Model)
		if p.planner.Devices, err = f.deps.Devices(ctx, handle); err != nil {
			return nil, fmt.Errorf("make the plugin %s: %w", Name, err)
		}
	}
	return p, nil
}

// start makes what the profiles share, once. The settings are those of the first profile.
func (f *Factory) start(ctx context.Context, args settings, handle fwk.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gangs != nil {
		return nil
	}
	limits := f.deps.Limits
	limits.Starve = cmp.Or(args.reserveAfter, limits.Starve)
	r := newRegistry(args.levels, f.deps.Clock, limits, f.deps.Model.Requests)
	wake := func(pods []*v1.Pod) { activate(handle, pods) }
	registration, err := handle.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if pod, ok := object.(*v1.Pod); ok {
				undo(handle, r.set(pod))
			}
		},
		UpdateFunc: func(_, object any) {
			if pod, ok := object.(*v1.Pod); ok {
				undo(handle, r.set(pod))
			}
		},
		DeleteFunc: func(object any) {
			unknown, stale := object.(cache.DeletedFinalStateUnknown)
			if stale {
				object = unknown.Obj
			}
			if pod, ok := object.(*v1.Pod); ok {
				undo(handle, r.gone(pod, stale))
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow pods: %w", err)
	}
	if err := followGroups(ctx, handle, r, wake); err != nil {
		return err
	}
	k := &keeper{gangs: r, handle: handle, clock: f.deps.Clock}
	go k.run(ctx)
	f.gangs, f.synced = r, registration.HasSynced
	return nil
}

// Levels are the levels of topology: those of the first profile with the plugin, or the default.
func (f *Factory) Levels() gangplan.Levels {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gangs == nil {
		return gangplan.DefaultLevels()
	}
	return f.gangs.levels
}

// Hold sets what is held for members of gangs against pods that are placed together, and what these can use of nodes where places are
// reserved. It is for the scheduling cycle.
func (f *Factory) Hold(q *gangplanner.Question, pods []*v1.Pod) {
	f.mu.Lock()
	r := f.gangs
	f.mu.Unlock()
	if r == nil || r.holds.count.Load() == 0 {
		return
	}
	held, left := r.heldAgainst(pods, q.Nodes)
	q.Held, q.Taken, q.Left = wanted(held, f.deps.Model), taken(held), left
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// SignPod gives members of gangs no signature: each has its own node, so that results of one are of no use for the next.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if _, member := keyOf(pod); member {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the pod is a member of a gang")
	}
	return nil, nil
}

func keyOf(pod *v1.Pod) (gangplan.Key, bool) { return gangplan.KeyOf(pod) }

// activate brings pods back to the queue.
func activate(handle fwk.Handle, pods []*v1.Pod) {
	if len(pods) == 0 {
		return
	}
	list := make(map[string]*v1.Pod, len(pods))
	for _, pod := range pods {
		list[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}.String()] = pod
	}
	handle.Activate(klog.Background(), list)
}

// undo ends the reservations of members, and brings them back to the queue.
func undo(handle fwk.Handle, out released) {
	for _, uid := range out.waiting {
		if waiting := handle.GetWaitingPod(uid); waiting != nil {
			waiting.Reject(Name, out.reason)
		}
	}
	activate(handle, out.pods)
}
