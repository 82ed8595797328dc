package gpunode

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Client is what the publisher needs of an API server.
type Client interface {
	// NodeUID is the UID of the Node object of that name.
	NodeUID(ctx context.Context, name string) (types.UID, error)
	// Get reads a GPUNode.
	Get(ctx context.Context, name string) (*v1alpha1.GPUNode, error)
	// Apply writes a whole GPUNode by server-side apply.
	Apply(ctx context.Context, node *v1alpha1.GPUNode) error
}

// Deps are what a Publisher is made of.
type Deps struct {
	Client Client
	// NodeName is the name of the Node and of the GPUNode.
	NodeName string
	// Clock defaults to the real one.
	Clock clock.WithTicker
	Log   *slog.Logger
	// Interval is the least time between two writes; default 1 s.
	Interval time.Duration
	// Resync is how often the API's copy is compared with ours, so that one that was
	// deleted or changed by hand comes back; default 10 min.
	Resync time.Duration
}

const (
	defaultInterval = time.Second
	defaultResync   = 10 * time.Minute
	callTimeout     = 10 * time.Second
	maxBackoff      = time.Minute
)

// Publisher keeps the API's copy of a GPUNode equal to the last one that Publish got.
type Publisher struct {
	deps   Deps
	wake   chan struct{}
	mu     sync.Mutex
	wanted *v1alpha1.GPUNode
	writes atomic.Int64
	failed atomic.Pointer[string]
}

// NewPublisher makes a publisher; Run does the work.
func NewPublisher(deps Deps) *Publisher {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Interval <= 0 {
		deps.Interval = defaultInterval
	}
	if deps.Resync <= 0 {
		deps.Resync = defaultResync
	}
	return &Publisher{deps: deps, wake: make(chan struct{}, 1)}
}

// Publish says what the object should be. It never waits; of several calls between
// two writes the last one counts. The object must not be changed afterwards.
func (p *Publisher) Publish(node *v1alpha1.GPUNode) {
	p.mu.Lock()
	p.wanted = node
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Writes counts the writes that the API server took.
func (p *Publisher) Writes() int64 { return p.writes.Load() }

// Err says why the last attempt failed; nil when the API has the last object, or
// when nothing was to be written yet.
func (p *Publisher) Err() error {
	if text := p.failed.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

func (p *Publisher) latest() *v1alpha1.GPUNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// session is what Run remembers between two writes.
type session struct {
	published *v1alpha1.GPUNode // as we believe the API has it
	owner     types.UID
	failures  int
}

// Run writes until ctx ends, which is the only error it returns. A failed write is
// tried again with growing pauses, up to a minute; it delays nobody but itself.
func (p *Publisher) Run(ctx context.Context) error {
	state := &session{}
	p.compare(ctx, state) // an agent that starts again has nothing to say that the API does not know
	resync := p.deps.Clock.NewTicker(p.deps.Resync)
	defer resync.Stop()
	for {
		pause := time.Duration(0)
		switch err := p.step(ctx, state); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNothingToDo):
			state.failures = 0
			p.failed.Store(nil)
		case err != nil:
			pause = p.backoff(state.failures)
			state.failures++
			p.note(err, pause)
		default:
			pause = p.deps.Interval
			state.failures = 0
			p.failed.Store(nil)
		}
		if err := p.wait(ctx, pause, state, resync.C()); err != nil {
			return err
		}
	}
}

// wait returns after the pause, once there may be something to do.
func (p *Publisher) wait(ctx context.Context, pause time.Duration, state *session, resync <-chan time.Time) error {
	if pause > 0 {
		timer := p.deps.Clock.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
		}
		if state.failures > 0 {
			return nil
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.wake:
	case <-resync:
		p.compare(ctx, state)
	}
	return nil
}

var errNothingToDo = errors.New("nothing to write")

// step writes the wanted object if the API does not have it.
func (p *Publisher) step(ctx context.Context, state *session) error {
	wanted := p.latest()
	if wanted == nil || (state.published != nil && equality.Semantic.DeepEqual(state.published.Status, wanted.Status)) {
		return errNothingToDo
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if state.owner == "" {
		uid, err := p.deps.Client.NodeUID(ctx, p.deps.NodeName)
		if err != nil {
			return fmt.Errorf("read Node %s for the owner reference: %w", p.deps.NodeName, err)
		}
		state.owner = uid
	}
	if err := p.deps.Client.Apply(ctx, Owned(wanted, p.deps.NodeName, state.owner)); err != nil {
		state.owner = "" // the Node may have been made anew
		return fmt.Errorf("write GPUNode %s: %w", p.deps.NodeName, err)
	}
	p.writes.Add(1)
	state.published = wanted
	return nil
}

// Owned is the object with the Node as its owner, so that it goes when the Node goes.
func Owned(node *v1alpha1.GPUNode, nodeName string, uid types.UID) *v1alpha1.GPUNode {
	owned := node.DeepCopy()
	owned.Name = nodeName
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: uid}}
	return owned
}

// compare learns what the API has: a copy that was deleted or changed by hand, or
// whose Node is another one by now, is written again by the next step.
func (p *Publisher) compare(ctx context.Context, state *session) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	uid, err := p.deps.Client.NodeUID(ctx, p.deps.NodeName)
	if err != nil {
		p.deps.Log.Debug("GPUNode not compared", "error", err)
		return
	}
	current, err := p.deps.Client.Get(ctx, p.deps.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		p.deps.Log.Debug("GPUNode not compared", "error", err)
		return
	}
	state.owner, state.published = uid, nil
	if err == nil && slices.ContainsFunc(current.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == uid }) {
		state.published = current
	}
}

// note keeps the reason and logs it once until it changes.
func (p *Publisher) note(err error, pause time.Duration) {
	text := err.Error()
	if apierrors.IsForbidden(err) {
		text += "; fix: bind the agent's service account to a role with get, create, patch and update on gpunodes.berth.dev and get on nodes"
	}
	if last := p.failed.Swap(&text); last == nil || *last != text {
		p.deps.Log.Warn("GPUNode not written; the API shows the last one that was", "error", text, "next", pause)
	}
}

// backoff doubles from the interval to a minute. A part of it, up to a quarter,
// depends on the node's name, so that a fleet does not come back in step.
func (p *Publisher) backoff(failures int) time.Duration {
	pause := p.deps.Interval << min(failures, 6)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(p.deps.NodeName))
	pause += pause / 4 * time.Duration(hash.Sum32()%1000) / 1000
	return min(pause, maxBackoff)
}
