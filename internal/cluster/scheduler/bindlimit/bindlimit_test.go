package bindlimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

func testPod(i int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}
}

// profiles returns the plugins of two profiles of one scheduler.
func profiles(t *testing.T) (*Factory, [2]Plugin) {
	t.Helper()
	f := NewFactory()
	var made [2]Plugin
	for i := range made {
		p, err := f.New(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		made[i] = p.(Plugin)
	}
	return f, made
}

// TestLimit binds 2,000 pods of two profiles at once; a third of the bindings fail, as the framework ends them.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, made := profiles(t)
		var now, most atomic.Int64
		for i := range 2000 {
			go func() {
				p, pod := made[i%2], testPod(i)
				if got := p.Bind(t.Context(), nil, pod, "a"); got.Code() != fwk.Skip {
					t.Errorf("pod %d: %v, want Skip", i, got)
				}
				for n := now.Add(1); ; {
					if old := most.Load(); old >= n || most.CompareAndSwap(old, n) {
						break
					}
				}
				time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
				now.Add(-1)
				if i%3 == 0 {
					p.Unreserve(t.Context(), nil, pod, "a")
				} else {
					p.PostBind(t.Context(), nil, pod, "a")
				}
				p.Unreserve(t.Context(), nil, pod, "a") // Without a place it changes nothing.
			}()
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if now.Load() != 0 || most.Load() != Slots {
			t.Errorf("at most %d pods were bound at a time and %d remain, want %d and 0", most.Load(), now.Load(), Slots)
		}
		if len(f.places) != 0 || len(f.held) != 0 {
			t.Errorf("%d places and %d pods are left", len(f.places), len(f.held))
		}
	})
}

// TestFull ends the context of a binding that waits, and the place of another.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, made := profiles(t)
		for i := range Slots {
			made[0].Bind(t.Context(), nil, testPod(i), "a")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan *fwk.Status, 1)
		go func() { ended <- made[1].Bind(ctx, nil, testPod(Slots), "a") }()
		synctest.Wait()
		cancel(errors.New("the scheduler ends"))
		if got := (<-ended).AsError(); got == nil || got.Error() != "wait until fewer than 64 pods are being bound: the scheduler ends" {
			t.Errorf("the binding ended with %v", got)
		}
		made[1].Unreserve(t.Context(), nil, testPod(Slots), "a")
		if len(f.places) != Slots {
			t.Errorf("%d places are held, want %d", len(f.places), Slots)
		}
		made[0].PostBind(t.Context(), nil, testPod(3), "a")
		if got := made[1].Bind(t.Context(), nil, testPod(Slots), "a"); got.Code() != fwk.Skip {
			t.Errorf("with a place free: %v, want Skip", got)
		}
	})
}

// TestTwice binds a pod two times: it holds one place.
func TestTwice(t *testing.T) {
	f, made := profiles(t)
	made[0].Bind(t.Context(), nil, testPod(1), "a")
	made[0].Bind(t.Context(), nil, testPod(1), "a")
	if len(f.places) != 1 {
		t.Errorf("%d places are held, want 1", len(f.places))
	}
	made[0].PostBind(t.Context(), nil, testPod(1), "a")
	if len(f.places) != 0 {
		t.Errorf("%d places are held, want none", len(f.places))
	}
}
