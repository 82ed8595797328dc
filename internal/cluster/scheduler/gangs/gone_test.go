package gangs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// apiServer is a fake API server with the two members of a gang on a node, and the plugin's registry and keeper beside it.
type apiServer struct {
	fwk.Handle
	client  *fake.Clientset
	factory informers.SharedInformerFactory
	events  *watch.FakeWatcher
	gangs   *world
	stop    func()
}

func (c *apiServer) ClientSet() kubernetes.Interface                        { return c.client }
func (c *apiServer) SharedInformerFactory() informers.SharedInformerFactory { return c.factory }
func (c *apiServer) KubeConfig() *rest.Config                               { return nil }
func (c *apiServer) Activate(klog.Logger, map[string]*v1.Pod)               {}
func (c *apiServer) GetWaitingPod(types.UID) fwk.WaitingPod                 { return nil }
func (c *apiServer) IterateOverWaitingPods(func(fwk.WaitingPod))            {}

// newCluster returns one that has just synced, and from which the first member is gone.
func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	first := ofJob(pod(0, 2, "n0"))
	c := &apiServer{client: fake.NewClientset(first, ofJob(pod(1, 2, "n1"))), events: watch.NewFake()}
	c.client.PrependWatchReactor("pods", clienttesting.DefaultWatchReactor(c.events, nil))
	c.factory = informers.NewSharedInformerFactory(c.client, 0)
	ctx, cancel := context.WithCancel(t.Context())
	clock := clocktesting.NewFakeClock(start)
	f := NewFactory(Deps{Model: model.New(model.Deps{}), Clock: clock})
	if err := f.start(ctx, settings{levels: gangplan.DefaultLevels()}, c); err != nil {
		t.Fatal(err)
	}
	f.gangs.serve("berth-scheduler")
	c.factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), f.synced)
	synctest.Wait()
	clock.Step(time.Second) // The keeper sees that the gang is whole.
	synctest.Wait()
	c.gangs = &world{registry: f.gangs, clock: clock}
	c.stop = func() {
		cancel()
		c.factory.Shutdown()
	}
	if err := c.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), first.Namespace, first.Name); err != nil {
		t.Fatal(err)
	}
	return c
}

// state says how many members of the gang have succeeded, and on which nodes something is held.
func (w *world) state() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("done %d, held [%s]", w.build(w.train()).Done, w.heldOn())
}

// ofJob makes a pod one of a Job.
func ofJob(p *v1.Pod) *v1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{{UID: "job", Controller: new(true)}}
	return p
}

// TestGone checks what a member is of which the watch says that it was deleted, with the pod as it was before: the watch is of pods that
// have not ended, so that one that has succeeded comes like one that was deleted.
func TestGone(t *testing.T) {
	tests := map[string]struct {
		// live is the pod that the API server has, if any; err is its answer instead.
		live    func(p *v1.Pod)
		err     error
		deleted bool // the event says that the pod was being deleted.
		want    string
	}{
		"it has succeeded": {live: func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }, want: "done 1, held []"},
		"it has failed":    {live: func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }, want: "done 0, held [n0]"},
		"it was deleted":   {want: "done 0, held [n0]"},
		"another one has its name, and has succeeded": {live: func(p *v1.Pod) { p.UID, p.Status.Phase = "another", v1.PodSucceeded }, want: "done 0, held [n0]"},
		"it cannot be read":                           {live: func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }, err: errors.New("no answer"), want: "done 0, held [n0]"},
		"it was being deleted":                        {live: func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }, deleted: true, want: "done 0, held [n0]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newAPIServer(t)
				defer c.stop()
				if live := ofJob(pod(0, 2, "n0")); test.live != nil {
					test.live(live)
					if err := c.client.Tracker().Add(live); err != nil {
						t.Fatal(err)
					}
				}
				c.client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if got := action.(clienttesting.ListAction).GetListRestrictions().Fields.String(); got != "metadata.name=train-0" {
						t.Errorf("it lists %q", got)
					}
					return test.err != nil, nil, test.err
				})
				last := ofJob(pod(0, 2, "n0"))
				if test.deleted {
					deletedAt(0)(last)
				}
				c.events.Delete(last)
				synctest.Wait()
				if got := c.gangs.state(); got != test.want {
					t.Errorf("got %s; want %s", got, test.want)
				}
			})
		})
	}
}

// TestGoneUntilRead: until it is read what a member is that is gone, it counts, and its place is held.
func TestGoneUntilRead(t *testing.T) {
	succeeded := func() *v1.Pod {
		p := ofJob(pod(0, 2, "n0"))
		p.Status.Phase = v1.PodSucceeded
		return p
	}
	first := func() *v1.Pod { return ofJob(pod(0, 2, "n0")) }
	tests := map[string]struct {
		run  func(w *world)
		want string // members and their inquiries, then the state
	}{
		"not read":                     {func(w *world) { w.gone(first(), false) }, "0 1, asked 1, done 0, held [n0]"},
		"it has succeeded":             {func(w *world) { w.gone(first(), false); w.answered(first(), succeeded()) }, "1, asked 0, done 1, held []"},
		"it was deleted":               {func(w *world) { w.gone(first(), false); w.answered(first(), nil) }, "1, asked 0, done 0, held [n0]"},
		"it is back before the answer": {func(w *world) { w.gone(first(), false); w.set(first()); w.answered(first(), nil) }, "0 1, asked 0, done 0, held []"},
		"it was being deleted":         {func(w *world) { w.gone(deleted(first()), false) }, "1, asked 0, done 0, held [n0]"},
		"it was being deleted, and may have been since": {func(w *world) { w.gone(deleted(first()), true) }, "0 1, asked 1, done 0, held [n0]"},
		"it has no node":  {func(w *world) { w.set(pod(2, 2, "")); w.gone(pod(2, 2, ""), false) }, "0 1, asked 0, done 0, held []"},
		"it is no member": {func(w *world) { w.gone(running("a", 1), false) }, "0 1, asked 0, done 0, held []"},
		"all have succeeded, one after another": {func(w *world) {
			w.gone(first(), false)
			w.gone(ofJob(pod(1, 2, "n1")), false)
		}, "0 1, asked 2, done 0, held [n0 n1]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.set(first())
			w.set(ofJob(pod(1, 2, "n1")))
			w.overdue()
			test.run(w)
			list, _ := w.inquired()
			if got := fmt.Sprintf("%s, asked %d, %s", names(w.build(w.train()).Members), len(list), w.state()); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func deleted(p *v1.Pod) *v1.Pod {
	deletedAt(0)(p)
	return p
}

// TestGoneMany: of very many members that are gone a part is read at a time.
func TestGoneMany(t *testing.T) {
	w := newWorld()
	for i := range mostReads + 1 {
		w.set(pod(i, 2, "n0"))
		w.gone(pod(i, 2, "n0"), false)
	}
	list, more := w.inquired()
	if len(list) != mostReads || !more {
		t.Errorf("%d are read, more: %v", len(list), more)
	}
	w.answered(list[0], nil)
	if list, more = w.inquired(); len(list) != mostReads || more {
		t.Errorf("%d are read then, more: %v", len(list), more)
	}
}

// TestLossAtOnce: a gang that loses a member before the keeper has seen it whole goes on, and the place of the member is held.
func TestLossAtOnce(t *testing.T) {
	succeeded := pod(1, 3, "n1")
	succeeded.Status.Phase = v1.PodSucceeded
	failed := pod(1, 3, "n1")
	failed.Status.Phase = v1.PodFailed
	tests := map[string]struct {
		lose func(w *world)
		want string // where places are held
	}{
		"it was deleted":                     {func(w *world) { w.remove(pod(1, 3, "n1")) }, "n1"},
		"it is gone, and was deleted":        {func(w *world) { w.gone(pod(1, 3, "n1"), false); w.answered(pod(1, 3, "n1"), nil) }, "n1"},
		"it is gone, and is not read yet":    {func(w *world) { w.gone(pod(1, 3, "n1"), false) }, "n1"},
		"it has succeeded, and is of no Job": {func(w *world) { w.gone(pod(1, 3, "n1"), false); w.answered(pod(1, 3, "n1"), succeeded) }, ""},
		"it is being deleted":                {func(w *world) { w.set(deleted(pod(1, 3, "n1"))) }, ""},
		"it is being deleted, and is gone":   {func(w *world) { w.set(deleted(pod(1, 3, "n1"))); w.remove(deleted(pod(1, 3, "n1"))) }, "n1"},
		"it has failed":                      {func(w *world) { w.set(failed) }, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for i := range 3 {
				w.set(pod(i, 3, ""))
			}
			w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
			for i := range 3 {
				w.bind(pod(i, 3, ""), fmt.Sprint("n", i))
				w.set(pod(i, 3, fmt.Sprint("n", i)))
			}
			test.lose(w)
			if got := w.heldOn(); got != test.want {
				t.Errorf("held on %q; want %q", got, test.want)
			}
			for range 60 {
				if _, ended := w.look(); ended != "" {
					t.Fatalf("%s are deleted", ended)
				}
				w.clock.Step(time.Second)
			}
		})
	}
	t.Run("it was never whole", func(t *testing.T) {
		w := newWorld()
		for i := range 3 {
			w.set(pod(i, 3, ""))
		}
		w.permitted(t, pod(0, 3, ""), pod(1, 3, ""), pod(2, 3, ""))
		w.set(pod(0, 3, "n0"))
		w.set(pod(1, 3, "n1"))
		w.set(failed)
		w.unreserve(pod(2, 3, ""), "n2", w.train().plan)
		ended := ""
		for range 60 {
			_, list := w.look()
			ended += list
			w.clock.Step(time.Second)
		}
		if ended == "" {
			t.Error("no member is deleted")
		}
	})
}
