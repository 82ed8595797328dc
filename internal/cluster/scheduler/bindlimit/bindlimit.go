package bindlimit

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthBindLimit"

// Slots is how many pods are bound at a time: below the 100 requests of an HTTP/2 connection, so that others have room on it. Measured in
// docs/performance.md.
const Slots = 64

// Factory makes the plugins of a scheduler, one per profile. They share the places.
type Factory struct {
	places chan struct{}

	mu   sync.Mutex
	held map[types.UID]struct{}
}

// NewFactory returns a factory.
func NewFactory() *Factory {
	return &Factory{places: make(chan struct{}, Slots), held: map[types.UID]struct{}{}}
}

// Plugin is the plugin of one profile.
type Plugin struct{ *Factory }

var (
	_ fwk.ReservePlugin  = Plugin{}
	_ fwk.BindPlugin     = Plugin{}
	_ fwk.PostBindPlugin = Plugin{}
)

// New makes the plugin of a profile. It has the form of a factory of Kubernetes' scheduling framework.
func (f *Factory) New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return Plugin{f}, nil
}

// Name returns the name of the plugin.
func (Plugin) Name() string { return Name }

// Reserve does nothing: a pod needs its place only when it is bound.
func (Plugin) Reserve(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status { return nil }

// Bind waits for a place and leaves the binding to the next plugin.
func (p Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	select {
	case p.places <- struct{}{}:
	case <-ctx.Done():
		return fwk.AsStatus(fmt.Errorf("wait until fewer than %d pods are being bound: %w", Slots, context.Cause(ctx)))
	}
	p.mu.Lock()
	_, twice := p.held[pod.UID]
	p.held[pod.UID] = struct{}{}
	p.mu.Unlock()
	if twice {
		<-p.places
	}
	return fwk.NewStatus(fwk.Skip)
}

// PostBind gives the place of a bound pod back.
func (p Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) { p.give(pod.UID) }

// Unreserve gives the place of a pod back whose binding failed. A pod that has none is left alone.
func (p Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	p.give(pod.UID)
}

func (f *Factory) give(uid types.UID) {
	f.mu.Lock()
	_, has := f.held[uid]
	delete(f.held, uid)
	f.mu.Unlock()
	if has {
		<-f.places
	}
}
