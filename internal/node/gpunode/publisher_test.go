package gpunode

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// fakeAPI keeps one GPUNode and notes when it was written. While a publisher runs,
// its fields are touched under the lock only.
type fakeAPI struct {
	sync.Mutex
	start  time.Time
	node   *v1alpha1.GPUNode
	uid    types.UID
	at     []time.Duration // attempts to write
	broken error
	delay  time.Duration
}

func (f *fakeAPI) NodeUID(context.Context, string) (types.UID, error) {
	f.Lock()
	defer f.Unlock()
	return f.uid, nil
}

func (f *fakeAPI) Get(_ context.Context, name string) (*v1alpha1.GPUNode, error) {
	f.Lock()
	defer f.Unlock()
	if f.node == nil {
		return nil, apierrors.NewNotFound(v1alpha1.GPUNodes().GroupResource(), name)
	}
	return f.node.DeepCopy(), nil
}

func (f *fakeAPI) Apply(ctx context.Context, node *v1alpha1.GPUNode) error {
	f.Lock()
	defer f.Unlock()
	f.at = append(f.at, time.Since(f.start))
	if f.delay > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(f.delay):
		}
	}
	if f.broken != nil {
		return f.broken
	}
	f.node = node
	return nil
}

// publishing runs body beside a publisher, in a bubble with its own time.
func publishing(t *testing.T, api *fakeAPI, body func(*Publisher)) {
	synctest.Test(t, func(t *testing.T) {
		api.start = time.Now()
		if api.uid == "" {
			api.uid = "node-uid"
		}
		publisher := NewPublisher(Deps{Client: api, NodeName: "node-0"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- publisher.Run(ctx) }()
		synctest.Wait()
		body(publisher)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func object(gpus int) *v1alpha1.GPUNode {
	s := &gpu.Snapshot{Driver: gpu.Driver{Version: "1"}}
	for i := range gpus {
		s.GPUs = append(s.GPUs, testGPU(i))
	}
	return Build("node-0", Input{Snapshot: s})
}

func TestPublisherWritesOncePerSecond(t *testing.T) {
	api := &fakeAPI{}
	publishing(t, api, func(p *Publisher) {
		for i := range 100 { // ten changes a second for ten seconds
			p.Publish(object(i % 7))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		api.Lock()
		defer api.Unlock()
		for i := 1; i < len(api.at); i++ {
			if gap := api.at[i] - api.at[i-1]; gap < time.Second {
				t.Errorf("writes %d and %d are only %v apart", i-1, i, gap)
			}
		}
		if len(api.at) < 9 || len(api.at) > 12 {
			t.Errorf("%d writes in ten seconds of changes, want about ten", len(api.at))
		}
		if diff := cmp.Diff(object(99%7).Status, api.node.Status); diff != "" {
			t.Errorf("the last object is not the one published last (-want +got):\n%s", diff)
		}
		if owner := api.node.OwnerReferences[0]; owner.Kind != "Node" || owner.UID != "node-uid" || owner.Name != "node-0" {
			t.Errorf("owner %+v", owner)
		}
	})
}

func TestPublisherIsQuietWithoutChange(t *testing.T) {
	api := &fakeAPI{node: Owned(object(2), "node-0", "node-uid")}
	publishing(t, api, func(p *Publisher) {
		for range 50 {
			p.Publish(object(2))
			time.Sleep(time.Minute)
		}
		api.Lock()
		defer api.Unlock()
		if len(api.at) != 0 {
			t.Errorf("wrote %d times what the API had already", len(api.at))
		}
	})
}

func TestPublisherMendsTheCopy(t *testing.T) {
	tests := map[string]func(*fakeAPI){
		"deleted":         func(f *fakeAPI) { f.node = nil },
		"changed by hand": func(f *fakeAPI) { f.node.Status.Devices[0].Product = "abacus" },
		"node made anew":  func(f *fakeAPI) { f.uid = "other-uid" },
	}
	for title, harm := range tests {
		t.Run(title, func(t *testing.T) {
			api := &fakeAPI{}
			publishing(t, api, func(p *Publisher) {
				p.Publish(object(2))
				time.Sleep(2 * time.Second)
				api.Lock()
				harm(api)
				api.Unlock()
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				api.Lock()
				defer api.Unlock()
				if len(api.at) != 2 {
					t.Errorf("%d writes, want 2", len(api.at))
				}
				if diff := cmp.Diff(Owned(object(2), "node-0", api.uid), api.node); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestPublisherRetriesWithPauses(t *testing.T) {
	api := &fakeAPI{broken: apierrors.NewForbidden(v1alpha1.GPUNodes().GroupResource(), "node-0", errors.New("no role"))}
	publishing(t, api, func(p *Publisher) {
		p.Publish(object(1))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		api.Lock()
		if n := len(api.at); n < 10 || n > 20 {
			t.Errorf("%d attempts in ten minutes of refusals, want them to thin out to one a minute", n)
		}
		for i := 2; i < len(api.at); i++ {
			if a, b := api.at[i-1]-api.at[i-2], api.at[i]-api.at[i-1]; b < a {
				t.Errorf("pause %d is %v, shorter than the %v before it", i, b, a)
			}
		}
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), "fix: bind") {
			t.Errorf("Err is %v, want the reason and the fix", err)
		}
		api.broken = nil
		api.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if p.Err() != nil || p.Writes() != 1 {
			t.Errorf("after the repair: Err %v, %d writes", p.Err(), p.Writes())
		}
	})
}

func TestPublishNeverWaits(t *testing.T) {
	api := &fakeAPI{delay: time.Hour}
	publishing(t, api, func(p *Publisher) {
		before := time.Now()
		for i := range 100 {
			p.Publish(object(i % 3))
		}
		if waited := time.Since(before); waited != 0 {
			t.Errorf("Publish waited %v for an API server that does not answer", waited)
		}
	})
}
