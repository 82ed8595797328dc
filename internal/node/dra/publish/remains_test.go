package publish

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

func sliceOf(name, driver, node string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node}}
}

// TestRemains: while nothing is allocated through DRA, the slices of this driver on this node are deleted at once, and read without them;
// the attempts are repeated while the API server fails, which is a problem only when GPUs wait for it.
func TestRemains(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "resourceslices"}, "", errors.New("no right"))
	for name, test := range map[string]struct {
		err       error
		published []gpu.UUID
		code      bool
		lists     int
	}{
		"reachable":                   {lists: 2, published: []gpu.UUID{"GPU-a"}},
		"away":                        {err: errors.New("away"), lists: 5},
		"away, and a GPU waits":       {err: errors.New("away"), lists: 5, published: []gpu.UUID{"GPU-a"}, code: true},
		"without rights":              {err: forbidden, lists: 1},
		"without rights, a GPU waits": {err: forbidden, lists: 5, published: []gpu.UUID{"GPU-a"}, code: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(sliceOf("own", "gpu.berth.dev", "node-a"), sliceOf("other-driver", "nic", "node-a"), sliceOf("other-node", "gpu.berth.dev", "node-b"))
				lists, codes, left := 0, []string{}, -1
				client.PrependReactor("list", "resourceslices", func(ktesting.Action) (bool, runtime.Object, error) {
					lists++
					return test.err != nil, nil, test.err
				})
				var used atomic.Bool
				var changed signal.Broadcast
				r := Remains{
					Checker: Checker{Client: client, Driver: "gpu.berth.dev", Node: "node-a", Pool: "node-a", Read: func() func([]resourceapi.ResourceSlice) {
						return func(list []resourceapi.ResourceSlice) { left = len(list) }
					}},
					InUse: used.Load, Changed: changed.Subscribe, Published: func() []gpu.UUID { return test.published },
					Report: func(_ string, problems ...gpu.Cause) {
						codes = nil
						for _, p := range problems {
							codes = append(codes, p.Code)
						}
					},
					Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
				}
				ended := make(chan bool)
				go func() { ended <- r.AwaitUse(t.Context()) }()
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if test.err == nil && left != 0 {
					t.Errorf("%d slices were left", left)
				}
				if lists < test.lists || lists > test.lists+2 {
					t.Errorf("read %d times, want about %d", lists, test.lists)
				}
				if slices.Contains(codes, "DRA_SLICES_REMAIN") != test.code {
					t.Errorf("the problems are %v", codes)
				}
				used.Store(true)
				changed.Set()
				if !<-ended || len(codes) > 0 {
					t.Errorf("at the end the problems are %v", codes)
				}
			})
		})
	}
}

// TestGuard: a slice is written only while begin permits it, its end follows the write, and wrote follows each write and deletion.
func TestGuard(t *testing.T) {
	var permit error
	begun, wrote := 0, 0
	client := Guard(fake.NewClientset(), func(*resourceapi.ResourceSlice) (func(), error) {
		begun++
		return func() { begun-- }, permit
	}, func() {
		if wrote++; begun != 0 {
			t.Error("a write is reported before it has ended")
		}
	}).ResourceV1().ResourceSlices()
	ctx := context.Background()
	made, err := client.Create(ctx, sliceOf("one", "gpu.berth.dev", "node-a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Update(ctx, made, metav1.UpdateOptions{}); err != nil || wrote != 2 {
		t.Fatalf("%v after %d writes", err, wrote)
	}
	permit = errors.New("outdated")
	if _, err := client.Update(ctx, made, metav1.UpdateOptions{}); !errors.Is(err, permit) {
		t.Errorf("an update that is not permitted: %v", err)
	}
	if _, err := client.Create(ctx, sliceOf("two", "gpu.berth.dev", "node-a"), metav1.CreateOptions{}); !errors.Is(err, permit) || wrote != 2 {
		t.Errorf("a creation that is not permitted: %v, %d writes", err, wrote)
	}
	begun = 0
	if err := client.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil || wrote != 3 {
		t.Errorf("a deletion: %v, %d writes", err, wrote)
	}
	if list, err := client.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("the slices at the end: %v, %v", list, err)
	}
}
