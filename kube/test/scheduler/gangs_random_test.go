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
	name                       string
	least, gpus, size, segment int
	priority                   *int32
	required, preferred, apart bool
	// whole is true from when enough members were on nodes until none is, done counts those that have succeeded.
	whole bool
	done  int
	// edited is true where labels of members were changed, forgotten where a scheduler started that cannot know what is done.
	edited, forgotten bool
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
		Repeat: 500 * time.Millisecond, Mask: time.Second, Retry: 100 * time.Millisecond,
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
		if strings.HasPrefix(text, "never: ") || time.Since(began) > 30*time.Second {
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

func (w *gangWorld) addGang(t *testing.T) {
	w.number++
	g := &randomGang{name: fmt.Sprintf("g%d", w.number), gpus: w.random.IntN(5), size: 1 + w.random.IntN(6)}
	g.least = 1 + w.random.IntN(g.size)
	switch w.random.IntN(8) {
	case 0, 1:
		g.required = true
	case 2:
		g.preferred = true
	case 3:
		g.segment = 2
		g.least = max(2, g.least/2*2)
		g.size = max(g.size, g.least)
	case 4:
		g.apart = true
	}
	if w.random.IntN(3) == 0 {
		g.priority = new(int32(10))
	}
	w.say("add gang %s: %d of %d members with %d GPUs; required %v, preferred %v, segments %d, apart %v", g.name, g.least, g.size, g.gpus, g.required, g.preferred, g.segment, g.apart)
	w.mu.Lock()
	w.gangs[g.name] = g
	w.mu.Unlock()
	for i := range g.size {
		w.add(t, g.pod(i))
	}
}

func (w *gangWorld) remove(name string) {
	_ = w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ml", name)
}

// update writes a pod, or does nothing if it does not exist any more.
func (w *gangWorld) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.version++
	pod.ResourceVersion = fmt.Sprint(w.version)
	w.mu.Unlock()
	_ = w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "ml")
}

// fresh returns a pod as it is now, or nil.
func (w *gangWorld) fresh(pod *corev1.Pod) *corev1.Pod {
	object, err := w.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "ml", pod.Name)
	if err != nil || object.(*corev1.Pod).UID != pod.UID {
		return nil
	}
	return object.(*corev1.Pod).DeepCopy()
}

// delete deletes a pod at once or in a while. The controller of a gang makes another one, but not always.
func (w *gangWorld) delete(t *testing.T, pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	w.say("delete %s on %q", pod.Name, pod.Spec.NodeName)
	if w.random.IntN(3) == 0 {
		if pod = w.fresh(pod); pod != nil {
			pod.DeletionTimestamp = new(metav1.Now())
			w.update(pod)
			w.terminating = append(w.terminating, pod.Name)
		}
		return
	}
	w.remove(pod.Name)
	w.replace(t, pod)
}

// replace creates the pod that takes the place of one that was deleted.
func (w *gangWorld) replace(t *testing.T, pod *corev1.Pod) {
	g := w.gangs[pod.Labels["berth.dev/pod-group"]]
	if g == nil || w.random.IntN(4) == 0 {
		return
	}
	index := 0
	if _, err := fmt.Sscanf(strings.TrimPrefix(pod.Name, g.name+"-"), "%d", &index); err != nil {
		t.Fatal(err)
	}
	w.add(t, g.pod(index))
}

// end has a pod that is on a node succeed.
func (w *gangWorld) end(_ *testing.T, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || w.random.IntN(2) == 0 {
		return
	}
	if pod = w.fresh(pod); pod == nil {
		return
	}
	w.say("%s succeeds", pod.Name)
	if g := w.gangs[pod.Labels["berth.dev/pod-group"]]; g != nil {
		w.mu.Lock()
		g.done++
		w.mu.Unlock()
	}
	pod.Status.Phase = corev1.PodSucceeded
	w.update(pod)
	w.remove(pod.Name)
}

func (w *gangWorld) dropGang(t *testing.T, pods []*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	g := w.gangs[pods[w.random.IntN(len(pods))].Labels["berth.dev/pod-group"]]
	if g == nil {
		return
	}
	w.say("delete gang %s", g.name)
	w.mu.Lock()
	delete(w.gangs, g.name)
	w.mu.Unlock()
	for _, pod := range w.pods() {
		if pod.Labels["berth.dev/pod-group"] == g.name {
			w.remove(pod.Name)
		}
	}
}

// unlabel takes a pod from its gang.
func (w *gangWorld) unlabel(_ *testing.T, pod *corev1.Pod) {
	g := w.gangs[pod.Labels["berth.dev/pod-group"]]
	if g == nil || g.apart {
		return
	}
	if pod = w.fresh(pod); pod == nil {
		return
	}
	w.say("take the label of %s on %q", pod.Name, pod.Spec.NodeName)
	w.mu.Lock()
	g.edited = true
	w.mu.Unlock()
	delete(pod.Labels, "berth.dev/pod-group")
	w.update(pod)
}

// fail makes bindings fail for a while.
func (w *gangWorld) fail() {
	once, lose, every := map[string]bool{}, w.random.IntN(2) == 0, 1+w.random.IntN(3)
	always := w.random.IntN(2) == 0
	w.say("bindings fail: each %d., always %v, bound nevertheless %v", every, always, lose)
	count := 0
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = func(b *corev1.Binding) (bool, bool) {
		count++
		if count%every != 0 || !always && once[b.Name] {
			return false, false
		}
		once[b.Name] = true
		return !lose, lose
	}
}

// changeNode changes a node, or adds one that was deleted.
func (w *gangWorld) changeNode(t *testing.T) {
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := w.random.IntN(len(list.Items) + 1)
	if i == len(list.Items) {
		for i := range 8 {
			name := fmt.Sprintf("n%d", i)
			if slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return n.Name == name }) {
				continue
			}
			w.say("add node %s", name)
			n := makeNode(name)
			n.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", i/2)
			if _, err := w.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.report(makeGPUNode(name, "nvlink", healthy, nil))
			return
		}
		return
	}
	n := list.Items[i].DeepCopy()
	switch dice := w.random.IntN(10); {
	case dice < 3:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
		w.say("cordon %s: %v", n.Name, n.Spec.Unschedulable)
	case dice < 6 && len(n.Spec.Taints) > 0:
		n.Spec.Taints = nil
		w.say("%s is ready", n.Name)
	case dice < 6:
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		w.say("%s is not ready", n.Name)
	case dice < 8 && len(list.Items) > 2:
		w.say("delete node %s", n.Name)
		if err := w.client.CoreV1().Nodes().Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, pod := range w.pods() {
			if pod.Spec.NodeName == n.Name {
				w.remove(pod.Name)
				w.replace(t, pod)
			}
		}
		return
	default:
		n.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", w.random.IntN(4))
		w.say("%s is in %s", n.Name, n.Labels["topology.kubernetes.io/rack"])
	}
	if _, err := w.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// collect deletes the pods on nodes that do not exist: a binding can come after the deletion of its node.
func (w *gangWorld) collect(t *testing.T) {
	pods, nodes := w.pods(), map[string]bool{"": true}
	for _, n := range w.spares(t, nil) {
		nodes[n.name] = true
	}
	for _, pod := range pods {
		if !nodes[pod.Spec.NodeName] {
			w.say("delete %s, whose node %s is gone", pod.Name, pod.Spec.NodeName)
			w.remove(pod.Name)
			w.replace(t, pod)
		}
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
