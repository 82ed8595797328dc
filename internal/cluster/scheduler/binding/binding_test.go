package binding

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// device returns a pod that requests a device.
func device(i int) *v1.Pod {
	pod := testPod(i)
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
	return pod
}

func testPod(i int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}
}

// profiles returns the plugins of two profiles of one scheduler.
func profiles(t *testing.T) (*Factory, [2]Plugin) {
	t.Helper()
	f := NewFactory(func(pod *v1.Pod) string { return pod.Labels["gang"] })
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
		if f.places.held() != 0 || len(f.held) != 0 {
			t.Errorf("%d places and %d pods are left", f.places.held(), len(f.held))
		}
	})
}

// TestOrder schedules 400 pods to 5 nodes and binds them in goroutines that start late by up to 50 ms. The pods with devices of a node are
// bound in the order in which they were scheduled, also behind one whose binding fails, and behind others in the second profile.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, made := profiles(t)
		var mu sync.Mutex
		bound := map[string][]int{}
		for i := range 400 {
			node, p, pod, late := fmt.Sprint(rand.IntN(5)), made[i%2], device(i), time.Duration(rand.IntN(50))*time.Millisecond
			if i%7 == 0 {
				pod = testPod(i) // It has no turn, and waits for none.
			}
			p.Reserve(t.Context(), nil, pod, node)
			go func() {
				time.Sleep(late)
				if i%11 == 0 {
					p.Unreserve(t.Context(), nil, pod, node) // Another plugin has refused it before its binding.
					return
				}
				if got := p.Bind(t.Context(), nil, pod, node); got.Code() != fwk.Skip {
					t.Errorf("pod %d: %v, want Skip", i, got)
				}
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				if i%13 == 0 {
					p.Unreserve(t.Context(), nil, pod, node)
					return
				}
				mu.Lock()
				if requestsDevices(pod) {
					bound[node] = append(bound[node], i)
				}
				mu.Unlock()
				p.PostBind(t.Context(), nil, pod, node)
			}()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		count := 0
		for node, order := range bound {
			if count += len(order); !slices.IsSorted(order) {
				t.Errorf("node %s: the order is %v", node, order)
			}
		}
		if count < 250 || len(f.turns)+len(f.last)+len(f.held)+f.places.held() != 0 {
			t.Errorf("%d pods were bound in order; left: %d turns, %d nodes, %d pods, %d places", count, len(f.turns), len(f.last), len(f.held), f.places.held())
		}
	})
}

// TestPatience: a pod that is held up before its binding is waited for only for a while, one that is being bound until that has ended.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, made := profiles(t)
		p, began := made[0], time.Now()
		for i := range 3 {
			p.Reserve(t.Context(), nil, device(i), "a")
		}
		p.Bind(t.Context(), nil, device(1), "a")
		if waited := time.Since(began); waited != Patience {
			t.Errorf("the second pod waited %v for the first, which is held up; want %v", waited, Patience)
		}
		go func() {
			time.Sleep(10 * time.Second)
			p.PostBind(t.Context(), nil, device(1), "a")
		}()
		p.Bind(t.Context(), nil, device(2), "a")
		if waited := time.Since(began); waited != Patience+10*time.Second {
			t.Errorf("the third pod was bound after %v, want after the second", waited)
		}
		p.Bind(t.Context(), nil, device(0), "a") // Nothing is before the first.
		p.Reserve(t.Context(), nil, device(3), "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the scheduler ends"))
		if got := p.Bind(ctx, nil, device(3), "a").AsError(); got == nil || got.Error() != "wait until the pods before it are bound: the scheduler ends" {
			t.Errorf("the binding ended with %v", got)
		}
	})
}

func TestRequestsDevices(t *testing.T) {
	for name, want := range map[v1.ResourceName]bool{"cpu": false, "hugepages-2Mi": false, "kubernetes.io/batch-cpu": false,
		"attachable.storage.kubernetes.io/x": false, "nvidia.com/gpu": true, "nvidia.com/mig-1g.10gb": true, "kubernetes.io.example.com/a": true} {
		limits := v1.ResourceRequirements{Limits: v1.ResourceList{name: resource.MustParse("1")}}
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{}, {Resources: limits}}}}
		early := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{Resources: limits}}}}
		if requestsDevices(pod) != want || requestsDevices(early) != want {
			t.Errorf("%s: %v and %v, want %v", name, requestsDevices(pod), requestsDevices(early), want)
		}
	}
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
		if f.places.held() != Slots {
			t.Errorf("%d places are held, want %d", f.places.held(), Slots)
		}
		made[0].PostBind(t.Context(), nil, testPod(3), "a")
		if got := made[1].Bind(t.Context(), nil, testPod(Slots), "a"); got.Code() != fwk.Skip {
			t.Errorf("with a place free: %v, want Skip", got)
		}
	})
}

// TestPlacesInOrder: pods that wait for a place get it in the order in which they were scheduled, whenever they came to wait. One whose
// context ends takes none.
func TestPlacesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, made := profiles(t)
		for i := range Slots {
			made[0].Bind(t.Context(), nil, testPod(i), "a")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var got []int
		waits := func(i int, ctx context.Context) {
			go func() {
				if made[i%2].Bind(ctx, nil, device(1000+i), fmt.Sprint("n", i)).Code() == fwk.Skip {
					got = append(got, i)
				}
			}()
			synctest.Wait()
		}
		for i := range 5 {
			made[0].Reserve(t.Context(), nil, device(1000+i), fmt.Sprint("n", i))
		}
		waits(3, t.Context())
		waits(1, t.Context())
		waits(0, ctx)
		waits(4, t.Context())
		waits(2, t.Context())
		cancel()
		synctest.Wait()
		for i := range 4 {
			made[0].PostBind(t.Context(), nil, testPod(i), "a")
			synctest.Wait()
		}
		if want := []int{1, 2, 3, 4}; !slices.Equal(got, want) || f.places.held() != Slots {
			t.Errorf("the order is %v, want %v; %d places are held", got, want, f.places.held())
		}
	})
}

// TestGroups: gangs leave places for other pods, and two of them get as many. In a gang the order is that of the numbers.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, made := profiles(t)
		var all []*v1.Pod
		var got []string
		for _, gang := range slices.Concat(slices.Repeat([]string{"a"}, GangSlots+4), []string{"b", "b", "b"}, slices.Repeat([]string{""}, Slots-GangSlots+2)) {
			pod := testPod(len(all))
			pod.Labels = map[string]string{"gang": gang}
			all = append(all, pod)
			go func() {
				made[0].Bind(t.Context(), nil, pod, "n")
				got = append(got, gang+string(pod.UID))
			}()
			synctest.Wait()
		}
		first := len(got)
		for _, pod := range all {
			made[0].PostBind(t.Context(), nil, pod, "n")
			synctest.Wait()
		}
		if want := []string{"b20", "b21", "b22", "a16", "a17", "a18", "a19", "71", "72"}; first != Slots || !slices.Equal(got[first:], want) {
			t.Errorf("%d are bound at once, then %v; want %d and %v", first, got[first:], Slots, want)
		}
		if f.places.held() != 0 || len(f.places.groups) != 0 {
			t.Errorf("%d places are held, by %d groups", f.places.held(), len(f.places.groups))
		}
	})
}

// TestHurried: a member of a gang that has to be bound before a pod of no gang on its node does not wait for the gang.
func TestHurried(t *testing.T) {
	for name, late := range map[string]bool{"waits already": false, "comes to wait later": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, made := profiles(t)
				var got []string
				bind := func(pod *v1.Pod) {
					go func() {
						made[0].Bind(t.Context(), nil, pod, "")
						got = append(got, string(pod.UID))
					}()
					synctest.Wait()
				}
				member := func(i int, node string) *v1.Pod {
					pod := device(i)
					pod.Labels = map[string]string{"gang": "a"}
					made[0].Reserve(t.Context(), nil, pod, node)
					return pod
				}
				var gang []*v1.Pod
				for i := range GangSlots + 9 {
					gang = append(gang, member(i, fmt.Sprint("n", i)))
				}
				last, other := member(100, "n"), device(101)
				made[0].Reserve(t.Context(), nil, other, "n")
				for _, pod := range gang {
					bind(pod)
				}
				if !late {
					bind(last)
				}
				bind(other)
				if late {
					bind(last)
				}
				if len(got) != GangSlots+1 || got[GangSlots] != "100" {
					t.Errorf("%v are bound; want %d of the gang, and the one before the other pod", got, GangSlots)
				}
				made[0].PostBind(t.Context(), nil, last, "n")
				synctest.Wait()
				if len(got) != GangSlots+2 || got[GangSlots+1] != "101" {
					t.Errorf("%v are bound; want the other pod next", got)
				}
				made[0].PostBind(t.Context(), nil, other, "n")
				for _, pod := range gang {
					made[0].PostBind(t.Context(), nil, pod, "n")
					synctest.Wait()
				}
				if f.places.held() != 0 || len(f.places.groups) != 0 || f.places.gangs != 0 {
					t.Errorf("%d places are held, %d by gangs, %d groups", f.places.held(), f.places.gangs, len(f.places.groups))
				}
			})
		})
	}
}

// TestTwice binds a pod two times: it holds one place.
func TestTwice(t *testing.T) {
	f, made := profiles(t)
	made[0].Bind(t.Context(), nil, testPod(1), "a")
	made[0].Bind(t.Context(), nil, testPod(1), "a")
	if f.places.held() != 1 {
		t.Errorf("%d places are held, want 1", f.places.held())
	}
	made[0].PostBind(t.Context(), nil, testPod(1), "a")
	if f.places.held() != 0 {
		t.Errorf("%d places are held, want none", f.places.held())
	}
}
