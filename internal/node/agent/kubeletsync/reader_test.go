package kubeletsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// readerWorld has the responses of the fakes.
type readerWorld struct {
	mu      sync.Mutex
	pods    map[string]podwatch.Pod
	states  map[string]podwatch.State
	away    bool
	cgroups []string
	// kept are the device IDs that the kubelet shows for a pod NAMESPACE/NAME; getErr is what Get fails with.
	kept   map[string][]string
	getErr error
	gets   int
	// late is how many Gets fail before.
	late int
	// news is applied when Resolve is called, after a delay.
	news  func()
	delay time.Duration
}

func (w *readerWorld) Pod(uid string) (podwatch.Pod, podwatch.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid], w.states[uid]
}

func (w *readerWorld) Current() (bool, error) {
	if w.away {
		return false, errors.New("no route")
	}
	return true, nil
}

func (w *readerWorld) Resolve(ctx context.Context, _ []string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(w.delay):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.news != nil {
		w.news()
	}
	return nil
}

func (w *readerWorld) Live() ([]kubelet.Container, error) { return nil, nil }
func (w *readerWorld) PodUIDs() ([]string, error)         { return w.cgroups, nil }

func (w *readerWorld) InPod(uid string) ([]kubelet.Container, bool, error) {
	return nil, slices.Contains(w.cgroups, uid), nil
}

func (w *readerWorld) Get(_ context.Context, namespace, name string) (kubelet.PodDevices, error) {
	w.gets++
	if w.gets <= w.late {
		return kubelet.PodDevices{}, errors.New("too busy")
	}
	pod := kubelet.PodDevices{Namespace: namespace, Name: name}
	pod.Containers = []kubelet.ContainerDevices{{Name: "main", Devices: []kubelet.Devices{{Resource: "nvidia.com/gpu", IDs: w.kept[namespace+"/"+name]}}}}
	return pod, w.getErr
}

func (w *readerWorld) node() *Reader {
	return NewReader(ReaderDeps{
		Pods: w, Containers: w, Resources: w, Snapshot: func() *gpu.Snapshot { return &gpu.Snapshot{} },
		Names: func() []string { return []string{"nvidia.com/gpu"} }, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
}

// TestPodByCgroup checks that without the API server, and for static pods, the cgroup shows whether a pod has ended.
func TestPodByCgroup(t *testing.T) {
	tests := map[string]struct {
		state  podwatch.State
		static bool
		away   bool
		// looks are the pods with a cgroup at each reading, 20 s apart.
		looks [][]string
		want  ledger.PodState
	}{
		"the API server has precedence":                 {state: podwatch.Living, looks: [][]string{{"p"}, nil}, want: ledger.PodLiving},
		"the API server reports the end":                {state: podwatch.Ended, looks: [][]string{{"p"}}, want: ledger.PodEnded},
		"away: the cgroup is there":                     {away: true, looks: [][]string{{"p"}}, want: ledger.PodLiving},
		"away: seen before, and gone":                   {state: podwatch.Living, away: true, looks: [][]string{{"p"}, nil}, want: ledger.PodEnded},
		"away: never seen, just listed":                 {away: true, looks: [][]string{nil, nil}, want: ledger.PodUnknown},
		"away: never seen, listed for long":             {away: true, looks: [][]string{nil, nil, nil}, want: ledger.PodEnded},
		"away: ended is final":                          {state: podwatch.Ended, away: true, looks: [][]string{{"p"}}, want: ledger.PodEnded},
		"not away, never seen by the watch":             {looks: [][]string{nil, nil, nil}, want: ledger.PodUnknown},
		"static: the cgroup is there":                   {static: true, looks: [][]string{{"p"}}, want: ledger.PodLiving},
		"static: seen before, and gone":                 {static: true, looks: [][]string{{"p"}, nil}, want: ledger.PodEnded},
		"static: gone for a moment while it is changed": {static: true, looks: [][]string{{"p"}, nil, {"p"}}, want: ledger.PodLiving},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &readerWorld{away: tc.away, pods: map[string]podwatch.Pod{"p": {UID: "p", Static: tc.static}}, states: map[string]podwatch.State{"p": tc.state}}
				n := w.node()
				for i, cgroups := range tc.looks {
					if i > 0 {
						time.Sleep(20 * time.Second)
					}
					w.cgroups = cgroups
					if err := n.lookAtCgroups(); err != nil {
						t.Fatal(err)
					}
					n.NoteListed([]string{"p"})
				}
				if got := n.Pod("p").State; got != tc.want {
					t.Errorf("state %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// TestAsk checks what Ask finds before a device is refused, and how long it takes.
func TestAsk(t *testing.T) {
	ordinary := podwatch.Pod{UID: "p", Namespace: "ns", Name: "pod", Containers: []podwatch.Container{{Name: "first", Init: true}, {Name: "main"}}}
	question := func(container, device string) ledger.Question {
		return ledger.Question{PodUID: "p", Containers: []string{container}, All: []string{container}, Resource: "nvidia.com/gpu", Key: gpu.DeviceKey{GPU: gpu.UUID(device)}}
	}
	both := []ledger.Question{question("main", "GPU-a"), question("main", "GPU-b")}
	handedOn := question("first", "GPU-a")
	handedOn.All = []string{"first", "main"}
	tests := map[string]struct {
		world     *readerWorld
		questions []ledger.Question
		want      []ledger.Question
		gets      int
		// more is how many more Gets there may be: the last one is made in the moment in which the time ends.
		more int
		// within bounds the time; 0 means that Ask must not wait.
		within time.Duration
		state  ledger.PodState
	}{
		"the kubelet still has them": {
			world: &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}, kept: map[string][]string{"ns/pod": {"GPU-a", "GPU-b"}}},
			gets:  1, state: ledger.PodLiving,
		},
		"the kubelet has dropped one": {
			world: &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}, kept: map[string][]string{"ns/pod": {"GPU-b"}}},
			want:  both[:1], gets: 1, state: ledger.PodLiving,
		},
		"the kubelet does not have the pod": {
			world: &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}, getErr: kubelet.ErrNoPod},
			want:  both, gets: 1, state: ledger.PodLiving,
		},
		"the kubelet does not respond": {
			world: &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}, getErr: errors.New("rate limited")},
			gets:  20, more: 1, within: unansweredWithin, state: ledger.PodLiving,
		},
		"a busy kubelet responds late": {
			world: &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}, getErr: kubelet.ErrNoPod, late: 5},
			want:  both, gets: 6, within: 500 * time.Millisecond, state: ledger.PodLiving,
		},
		"an init container's devices are never listed": {
			world:     &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}},
			questions: []ledger.Question{question("first", "GPU-a")}, within: askWithin, state: ledger.PodLiving,
		},
		"the kubelet lists nothing for the other container": {
			world:     &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}},
			questions: []ledger.Question{handedOn}, want: []ledger.Question{handedOn}, gets: 1, state: ledger.PodLiving,
		},
		"the kubelet lists a device for the other container": {
			world:     &readerWorld{states: map[string]podwatch.State{"p": podwatch.Living}, kept: map[string][]string{"ns/pod": {"GPU-b"}}},
			questions: []ledger.Question{handedOn}, gets: 1, state: ledger.PodLiving,
		},
		"the API server reports that it is gone": {
			world: &readerWorld{delay: 50 * time.Millisecond}, within: 60 * time.Millisecond, state: ledger.PodEnded,
		},
		"a busy API server reports that it is gone": {
			world: &readerWorld{delay: 900 * time.Millisecond}, within: 910 * time.Millisecond, state: ledger.PodEnded,
		},
		"the API server hangs": {
			world: &readerWorld{delay: time.Hour}, within: unseenWithin, state: ledger.PodUnknown,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := tc.world
				if w.states != nil {
					w.pods = map[string]podwatch.Pod{"p": ordinary}
				} else {
					w.news = func() { w.states = map[string]podwatch.State{"p": podwatch.Ended} }
				}
				if tc.questions == nil {
					tc.questions = both
				}
				n := w.node()
				began := time.Now()
				got := n.Ask(tc.questions)
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("dropped (-want +got):\n%s", diff)
				}
				if took := time.Since(began); took > tc.within {
					t.Errorf("it took %s, want at most %s", took, tc.within)
				}
				if w.gets < tc.gets || w.gets > tc.gets+tc.more {
					t.Errorf("%d Gets, want %d and at most %d more", w.gets, tc.gets, tc.more)
				}
				if state := n.Pod("p").State; state != tc.state {
					t.Errorf("afterwards the pod is in state %v, want %v", state, tc.state)
				}
			})
		})
	}
}

// TestGetsAreBounded checks the rate: the kubelet allows 100 Gets per second to all its clients together.
func TestGetsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &readerWorld{
			pods:   map[string]podwatch.Pod{"p": {UID: "p", Namespace: "ns", Name: "pod", Containers: []podwatch.Container{{Name: "main"}}}},
			states: map[string]podwatch.State{"p": podwatch.Living}, kept: map[string][]string{"ns/pod": {"GPU-a"}},
		}
		n := w.node()
		began := time.Now()
		for range 100 {
			n.Ask([]ledger.Question{{PodUID: "p", Containers: []string{"main"}, All: []string{"main"}, Resource: "nvidia.com/gpu", Key: gpu.DeviceKey{GPU: "GPU-a"}}})
		}
		if most := getsPerSecond * (1 + int(time.Since(began)/time.Second)); w.gets > most {
			t.Errorf("%d Gets in %s, want at most %d", w.gets, time.Since(began), most)
		}
	})
}

// TestManyPodsEnd: many pods end at once, and the API server does not say so in time. The kubelet is asked for each, although fewer Gets
// are allowed in a second.
func TestManyPodsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &readerWorld{pods: map[string]podwatch.Pod{}, states: map[string]podwatch.State{}, getErr: kubelet.ErrNoPod}
		for i := range 4 * getsPerSecond {
			uid := strconv.Itoa(i)
			w.pods[uid] = podwatch.Pod{UID: uid, Namespace: "ns", Name: uid, Containers: []podwatch.Container{{Name: "main"}}}
			w.states[uid] = podwatch.Living
		}
		n := w.node()
		for uid := range w.pods {
			question := ledger.Question{PodUID: uid, Containers: []string{"main"}, All: []string{"main"}, Resource: "nvidia.com/gpu", Key: gpu.DeviceKey{GPU: "GPU-a"}}
			if dropped := n.Ask([]ledger.Question{question}); len(dropped) != 1 {
				t.Fatalf("after %d Gets a pod whose device the kubelet has dropped keeps it", w.gets)
			}
		}
	})
}

// TestPodsGone: of 10,000 pods that come and go nothing is kept.
func TestPodsGone(t *testing.T) {
	w := &readerWorld{}
	n := w.node()
	for i := range 1000 {
		w.cgroups = nil
		for k := range 10 {
			w.cgroups = append(w.cgroups, fmt.Sprintf("uid-%d-%d", i, k))
		}
		if _, err := n.LivingIn(append(slices.Clone(w.cgroups), fmt.Sprintf("without a cgroup %d", i))); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Living(); err != nil {
			t.Fatal(err)
		}
		n.NoteListed(w.cgroups)
	}
	w.cgroups = nil
	if _, err := n.Living(); err != nil {
		t.Fatal(err)
	}
	n.NoteListed(nil)
	if kept := len(n.present) + len(n.seen) + len(n.listed) + len(n.alone); kept > 0 {
		t.Errorf("%d present, %d seen, %d listed and %d alone are kept", len(n.present), len(n.seen), len(n.listed), len(n.alone))
	}
}
