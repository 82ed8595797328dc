package scheduler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
)

// TestGangRandom: after any sequence of gangs, pods and failures, no node has more pods than it can have, each gang has none or at least
// its least number of members on nodes unless it was whole and has lost some, and all that fits is placed.
func TestGangRandom(t *testing.T) {
	worlds, rounds := 6, 12
	if os.Getenv("BERTH_SOAK") == "1" {
		worlds, rounds = 40, 25
	}
	first := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_SEED"); text != "" {
		worlds = 1
		if _, err := fmt.Sscan(text, &first); err != nil {
			t.Fatal(err)
		}
	}
	for i := range worlds {
		seed := first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newGangWorld(t, seed)
			for round := range rounds {
				w.round(t, round)
			}
		})
	}
}

// quietLimit is how long all that fits may take to be placed: more than twice the 30 s for which a gang waits at most after a plan that
// took long, which a plan can do on a machine with other work.
const quietLimit = 75 * time.Second

// gangWorld is a cluster with gangs in which things fail.
type gangWorld struct {
	*lab
	random  *rand.Rand
	seed    uint64
	version int
	stop    func()
	log     []string
	number  int
	// terminating are pods whose deletion was requested.
	terminating []string

	mu    sync.Mutex
	gangs map[string]*randomGang
	// fault says what happens to the binding of a pod.
	fault func(*corev1.Binding) (refuse, lose bool)
}

// randomGang is what is known of a gang beside its pods.
type randomGang struct {
	name      string
	least     int
	gpus      int
	size      int
	segment   int
	priority  *int32
	required  bool
	preferred bool
	apart     bool
	// whole is true from when enough members were on nodes until none is, done counts those that have succeeded.
	whole bool
	done  int
	// edited is true where labels of members were changed, forgotten where a scheduler started that cannot know what is done.
	edited    bool
	forgotten bool
	// restarted is true where a scheduler started after the gang.
	restarted  bool
	generation int
}

func newGangWorld(t *testing.T, seed uint64) *gangWorld {
	w := &gangWorld{seed: seed, random: rand.New(rand.NewPCG(seed, 1)), gangs: map[string]*randomGang{}}
	w.lab = gangLab(t, 4+2*w.random.IntN(3))
	w.options = []scheduler.Option{scheduler.WithPodMaxBackoffSeconds(1)}
	w.limits = gangs.Limits{
		Look: 100 * time.Millisecond, Reserve: 2 * time.Second, Release: 4 * time.Second, Rebind: 3 * time.Second, Lost: 3 * time.Second,
		Repeat: 500 * time.Millisecond, Mask: time.Second, Retry: 100 * time.Millisecond, Preempt: 100 * time.Millisecond,
		Starve: 2 * time.Second, Hopeless: time.Second, Overdue: time.Second, Unknown: time.Second, Period: 2 * time.Second,
	}
	if seed%2 == 0 {
		w.limits.CycleSteps = 1 // All is planned beside the scheduling cycles.
	}
	w.refuse = func(b *corev1.Binding) error {
		if refuse, _ := w.faulty(b); refuse {
			return errors.New("the API server refuses the binding")
		}
		return nil
	}
	w.lost = func(b *corev1.Binding) error {
		w.look()
		if _, lose := w.faulty(b); lose {
			time.Sleep(50 * time.Millisecond) // The pod is known to be bound before the answer is an error; else the scheduler gives its place to another.
			return errors.New("the answer was lost")
		}
		return nil
	}
	// As the API server does, each write gives a pod another version.
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		w.version++
		version := w.version
		w.mu.Unlock()
		patch := action.(clienttesting.PatchActionImpl)
		patch.Patch = []byte(strings.Replace(string(patch.Patch), "{", fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},`, version), 1))
		object, err := patched(w.client.Tracker(), patch)
		return true, object, err
	})
	// A pod that was bound since it was read keeps its node; the API server would refuse to write it.
	w.client.PrependReactor("update", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.UpdateAction).GetObject().(*corev1.Pod)
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		now, err := w.client.Tracker().Get(pods, pod.Namespace, pod.Name)
		if err != nil {
			return true, nil, err
		}
		pod.Spec.NodeName = now.(*corev1.Pod).Spec.NodeName
		return true, pod, w.client.Tracker().Update(pods, pod, pod.Namespace)
	})
	w.stop = w.runGangs(t)
	return w
}

func patched(tracker clienttesting.ObjectTracker, patch clienttesting.PatchActionImpl) (runtime.Object, error) {
	_, object, err := clienttesting.ObjectReaction(tracker)(patch)
	return object, err
}

func (w *gangWorld) faulty(b *corev1.Binding) (refuse, lose bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		return false, false
	}
	return w.fault(b)
}

func (w *gangWorld) say(format string, values ...any) {
	w.log = append(w.log, time.Now().Format("05.000 ")+fmt.Sprintf(format, values...))
}

// pods returns all pods by name.
func (w *gangWorld) pods() []*corev1.Pod {
	object, err := w.client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "ml")
	if err != nil {
		panic(err)
	}
	list := object.(*corev1.PodList)
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// look notes which gangs are whole.
func (w *gangWorld) look() {
	pods := w.pods()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.gangs {
		switch on := len(g.bound(pods)); {
		case on >= g.least-g.done:
			g.whole = true
		case on == 0:
			g.whole = false
		}
	}
}

func (g *randomGang) members(pods []*corev1.Pod) (list []*corev1.Pod) {
	for _, pod := range pods {
		if pod.Labels["berth.dev/pod-group"] == g.name && pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded {
			list = append(list, pod)
		}
	}
	return list
}

func (g *randomGang) bound(pods []*corev1.Pod) (list []*corev1.Pod) {
	return slices.DeleteFunc(g.members(pods), func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" })
}

// pod returns a new pod of the gang.
func (g *randomGang) pod(index int) *corev1.Pod {
	g.generation++
	pod := member(g.name, index, g.least, g.gpus)
	pod.UID = types.UID(fmt.Sprintf("%s-%d-%d", g.name, index, g.generation))
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: g.name, UID: types.UID("job-" + g.name), Controller: new(true)}}
	pod.Spec.Priority = g.priority
	switch {
	case g.segment > 0:
		segments(pod)
	case g.required:
		annotated("berth.dev/topology-required", "rack")(pod)
	case g.preferred:
		annotated("berth.dev/topology-preferred", "rack")(pod)
	}
	if g.apart {
		apart(pod)
	}
	return pod
}

// round does something to the cluster, and waits until nothing is left to do.
func (w *gangWorld) round(t *testing.T, round int) {
	t.Helper()
	w.log = append(w.log, fmt.Sprintf("round %d", round))
	for range 4 + w.random.IntN(10) {
		w.step(t)
		time.Sleep(time.Duration(w.random.IntN(60)) * time.Millisecond)
		w.look()
	}
	w.mu.Lock()
	w.fault = nil
	w.mu.Unlock()
	for _, name := range w.terminating {
		w.remove(name)
	}
	w.terminating = nil
	began := time.Now()
	for {
		w.look()
		w.collect(t)
		text := w.check(t)
		if text == "" {
			break
		}
		if strings.HasPrefix(text, "never: ") || time.Since(began) > quietLimit {
			t.Fatalf("seed %d, after %v: %s\n%s\n%s", w.seed, time.Since(began), text, strings.Join(w.log, "\n"), w.state(t))
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.say("quiet after %v", time.Since(began).Round(time.Millisecond))
	for len(w.bound) > 0 {
		<-w.bound
	}
}

// step does one thing.
func (w *gangWorld) step(t *testing.T) {
	t.Helper()
	pods := w.pods()
	switch dice := w.random.IntN(100); {
	case dice < 25:
		w.addGang(t)
	case dice < 35:
		w.number++
		pod := makePod(fmt.Sprintf("single-%d", w.number), w.random.IntN(5), 1)
		w.say("add %s with %v GPUs", pod.Name, pod.Spec.Containers[0].Resources.Limits[gpuResource])
		w.add(t, pod)
	case dice < 50 && len(pods) > 0:
		w.delete(t, pods[w.random.IntN(len(pods))])
	case dice < 57 && len(pods) > 0:
		w.end(t, pods[w.random.IntN(len(pods))])
	case dice < 75:
		w.changeNode(t)
	case dice < 85:
		w.fail()
	case dice < 90:
		w.say("restart the scheduler")
		w.stop()
		time.Sleep(50 * time.Millisecond) // Bindings that are under way end.
		w.mu.Lock()
		for _, g := range w.gangs {
			g.restarted, g.forgotten = true, g.forgotten || g.done > 0
		}
		w.mu.Unlock()
		w.stop = w.runGangs(t)
	case dice < 93 && len(pods) > 0:
		w.unlabel(t, pods[w.random.IntN(len(pods))])
	default:
		w.dropGang(t, pods)
	}
	if len(w.gangs) > 12 {
		w.dropGang(t, pods)
	}
}

// state shows the cluster.
func (w *gangWorld) state(t *testing.T) string {
	var text strings.Builder
	for _, n := range w.spares(t, w.pods()) {
		fmt.Fprintf(&text, "node %s in %s: %d GPUs and %d CPUs left, usable %v\n", n.name, n.rack, n.gpus, n.cpus, n.usable)
	}
	for _, pod := range w.pods() {
		why := ""
		if pod.Spec.NodeName == "" {
			why = w.why(t, pod.Name)
			if info, ok := w.sched.SchedulingQueue.GetPod(pod.Name, pod.Namespace, nil); ok {
				why += fmt.Sprintf(" [queued, refused by %v, gated by %q]", info.UnschedulablePlugins.UnsortedList(), info.GatingPlugin)
			}
			for _, other := range w.sched.SchedulingQueue.InFlightPods() {
				if other.UID == pod.UID {
					why += " [in flight]"
				}
			}
		}
		fmt.Fprintf(&text, "%s (%s) min %s on %q: %s %v\n", pod.Name, pod.UID, pod.Labels["berth.dev/min-member"], pod.Spec.NodeName, why, pod.Status.NominatedNodeName)
	}
	return text.String()
}
