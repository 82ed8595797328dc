package publish

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

func now() *metav1.Time {
	time := metav1.Now()
	return &time
}

// objects returns an API server with the slices of a pool.
func objects(pool resourceslice.Pool, edit func(*resourceapi.ResourceSlice)) *fake.Clientset {
	var all []runtime.Object
	for i := range pool.Slices {
		object := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + strconv.Itoa(i)}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.berth.dev", Pool: resourceapi.ResourcePool{Name: "node-a", Generation: 5, ResourceSliceCount: int64(len(pool.Slices))}, Devices: pool.Slices[i].Devices}}
		if edit != nil {
			edit(object)
		}
		all = append(all, object)
	}
	return fake.NewClientset(all...)
}

// controller passes slices to the library's controller, as kubeletplugin's helper does.
type controller struct {
	client  *fake.Clientset
	failed  func(error)
	started atomic.Pointer[resourceslice.Controller]
}

func (c *controller) PublishResources(ctx context.Context, resources resourceslice.DriverResources) error {
	if running := c.started.Load(); running != nil {
		running.Update(&resources)
		return nil
	}
	running, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: "gpu.berth.dev", KubeClient: c.client, Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "node-a", UID: "node-uid"},
		Resources: &resources, ErrorHandler: func(_ context.Context, err error, _ string) { c.failed(err) },
	})
	c.started.Store(running)
	return err
}

// TestSlicesAfterRegistration: slices that a kubelet deletes at its start are back within 1 s of the registration, whether they are
// deleted before or after it. The library alone takes 30 s.
func TestSlicesAfterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var names atomic.Int64
		client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
			slice.ResourceVersion, slice.Name = "1", fmt.Sprintf("%s%d", slice.GenerateName, names.Add(1))
			return false, nil, nil
		})
		target := &controller{client: client}
		var changed signal.Broadcast
		wanted := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "gpu-0"}}}, {Devices: []resourceapi.Device{{Name: "gpu-1"}}}}}
		p := New(Deps{
			Pool: "node-a", Slices: func([]string) (resourceslice.Pool, error) { return wanted, nil }, Changed: changed.Subscribe, Target: target,
			Waiting: func(error) bool { return false }, Check: Checker{Client: client, Driver: "gpu.berth.dev", Node: "node-a", Pool: "node-a", Read: unread}.Check,
			Report: func(_ string, problems ...gpu.Cause) {
				if len(problems) > 0 {
					t.Errorf("%v", problems)
				}
			}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		})
		target.failed = p.Failed
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		defer func() {
			cancel()
			<-ended
			target.started.Load().Stop()
		}()
		count := func() int {
			list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		await := func(limit time.Duration) time.Duration {
			t.Helper()
			for began := time.Now(); ; time.Sleep(time.Millisecond) {
				if count() == 2 {
					return time.Since(began)
				}
				if time.Since(began) > limit {
					t.Fatalf("%d of 2 slices after %s", count(), limit)
				}
			}
		}
		wipe := func() {
			t.Helper()
			list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Items {
				if err := client.ResourceV1().ResourceSlices().Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Logf("published after %s", await(10*time.Second))
		// Of the attempts after the start, one is after 3 s, and the next one 3 s later.
		time.Sleep(3400 * time.Millisecond)

		wipe()
		time.Sleep(50 * time.Millisecond)
		if count() != 0 {
			t.Fatal("the slices are back without a registration")
		}
		p.Registered()
		t.Logf("deleted before the registration: back after %s", await(time.Second))

		p.Registered()
		time.Sleep(20 * time.Millisecond)
		wipe()
		t.Logf("deleted after the registration: back after %s", await(time.Second))
	})
}
