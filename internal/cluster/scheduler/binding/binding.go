package binding

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthBinding"

// Slots is how many pods are bound at a time: below the 100 requests of an HTTP/2 connection, so that other requests fit on it. Measured in
// docs/performance.md.
const Slots = 64

// GangSlots is how many of them members of gangs get. All members of a gang can be bound at once: with more requests under way an API
// server binds no more of them in a second, and answers the requests of others later.
const GangSlots = 16

// Patience is how long a pod waits for one that was scheduled to its node before it and is not being bound yet.
const Patience = 100 * time.Millisecond

// Factory makes the plugins of a scheduler, one per profile. They share the places and the order.
type Factory struct {
	places places
	// groupOf returns the gang or pod group of a pod, empty for none.
	groupOf func(*v1.Pod) string

	mu sync.Mutex
	// number is that of the last pod that was numbered: at Reserve, or at Bind if it requests no devices.
	number uint64
	held   map[types.UID]*waiter
	turns  map[types.UID]*turn
	// last is the last turn of each node.
	last map[string]*turn
}

// turn is the place of a pod in the order of its node.
type turn struct {
	node   string
	number uint64
	// before is the turn before it, nil when that and all before it have ended. A binding that fails can end before those before it.
	before *turn
	// begun is closed when the pod is to be bound, ended when its binding has ended or is waited for no longer.
	begun chan struct{}
	ended chan struct{}
	// hurried is true where a pod of no gang waits for it, place is what it waits for once it is to be bound.
	hurried bool
	place   *waiter
}

// NewFactory returns a factory. GroupOf returns the gang or pod group of a pod, empty for none.
func NewFactory(groupOf func(*v1.Pod) string) *Factory {
	return &Factory{
		places: places{groups: map[string]*group{}}, groupOf: groupOf, held: map[types.UID]*waiter{}, turns: map[types.UID]*turn{}, last: map[string]*turn{},
	}
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

// Reserve gives a pod that requests devices its turn on the node.
func (p Plugin) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if !requestsDevices(pod) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endTurn(pod.UID)
	p.number++
	t := &turn{node: node, number: p.number, before: p.last[node], begun: make(chan struct{}), ended: make(chan struct{})}
	p.turns[pod.UID], p.last[node] = t, t
	return nil
}

// Bind waits for the pods before this one and for a place, and leaves the binding to the next plugin.
func (p Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	group := p.groupOf(pod)
	w, err := p.waitTurn(ctx, pod.UID, group)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("wait until the pods before it are bound: %w", err))
	}
	if err := p.places.take(ctx, w); err != nil {
		return fwk.AsStatus(fmt.Errorf("wait until fewer than %d pods are being bound: %w", Slots, err))
	}
	p.mu.Lock()
	before := p.held[pod.UID]
	p.held[pod.UID] = w
	p.mu.Unlock()
	if before != nil {
		p.places.give(before)
	}
	return fwk.NewStatus(fwk.Skip)
}

// waitTurn waits for the turns before that of a pod to end, and returns what the pod waits for a place with. Turns that have not begun
// after Patience are waited for no longer, by any pod.
func (f *Factory) waitTurn(ctx context.Context, uid types.UID, group string) (*waiter, error) {
	f.mu.Lock()
	t, w := f.turns[uid], &waiter{group: group}
	if t != nil {
		w.number, t.place = t.number, w
		if t.hurried {
			w.group = ""
		}
		closeOnce(t.begun)
	} else {
		f.number++
		w.number = f.number
	}
	f.mu.Unlock()
	if t != nil && group == "" {
		f.hurry(t)
	}
	patience, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for before := f.firstBefore(t); before != nil; before = f.firstBefore(t) {
		select {
		case <-before.begun:
		case <-patience.Done():
			f.pass(before)
		}
		select {
		case <-before.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return w, nil
}

// hurry has the members of gangs wait as pods of no gang that have to be bound before a turn of one.
func (f *Factory) hurry(t *turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for before := t.before; before != nil; before = before.before {
		before.hurried = true
		if before.place != nil {
			f.places.hurry(before.place)
		}
	}
}

// pass ends the wait of all pods for a turn that has not begun.
func (f *Factory) pass(t *turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-t.begun:
	default:
		closeOnce(t.ended)
	}
}

// firstBefore returns the last turn before t that has not ended. It takes those that have ended out of the order.
func (f *Factory) firstBefore(t *turn) *turn {
	if t == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.skipEnded()
	return t.before
}

// skipEnded takes the turns before t that have ended out of the order. The caller holds the lock.
func (t *turn) skipEnded() {
	for t.before != nil {
		select {
		case <-t.before.ended:
			t.before = t.before.before
		default:
			return
		}
	}
}

// PostBind ends the turn of a bound pod, and gives its place back.
func (p Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) { p.end(pod.UID) }

// Unreserve ends the turn of a pod whose binding failed, and gives its place back. A pod that has none is left alone.
func (p Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) { p.end(pod.UID) }

func (f *Factory) end(uid types.UID) {
	f.mu.Lock()
	w := f.held[uid]
	delete(f.held, uid)
	f.endTurn(uid)
	f.mu.Unlock()
	if w != nil {
		f.places.give(w)
	}
}

// endTurn ends the turn of a pod, if it has one.
func (f *Factory) endTurn(uid types.UID) {
	t := f.turns[uid]
	if t == nil {
		return
	}
	delete(f.turns, uid)
	t.skipEnded()
	if f.last[t.node] == t {
		if f.last[t.node] = t.before; t.before == nil {
			delete(f.last, t.node)
		}
	}
	closeOnce(t.begun)
	closeOnce(t.ended)
}

// closeOnce closes a channel that may be closed. The caller holds the lock.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
