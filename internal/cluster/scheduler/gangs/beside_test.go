package gangs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
	core "github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// liveNode is a node of the scheduler's snapshot: it changes in place.
type liveNode struct {
	fwk.NodeInfo
	node       *v1.Node
	pods       []*v1.Pod
	generation int64
	gpus       int64
}

func (n *liveNode) Node() *v1.Node               { return n.node }
func (n *liveNode) GetGeneration() int64         { return n.generation }
func (n *liveNode) GetAllocatable() fwk.Resource { return amounts{cpu: 192000, gpus: n.gpus} }
func (n *liveNode) GetRequested() fwk.Resource {
	var used amounts
	for _, pod := range n.pods {
		used.cpu += pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		used.gpus += gpusOf(pod)
	}
	return used
}
func (n *liveNode) Snapshot() fwk.NodeInfo {
	c := *n
	c.pods = slices.Clone(n.pods)
	return &c
}
func (n *liveNode) GetPods() (list []fwk.PodInfo) {
	for _, pod := range n.pods {
		list = append(list, livePod{pod: pod})
	}
	return list
}

type livePod struct {
	fwk.PodInfo
	pod *v1.Pod
}

func (p livePod) GetPod() *v1.Pod { return p.pod }
func (p livePod) CalculateResource() fwk.PodResource {
	return fwk.PodResource{Resource: amounts{cpu: 1000, gpus: gpusOf(p.pod)}}
}

func gpusOf(pod *v1.Pod) int64 {
	amount := pod.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]
	return amount.Value()
}

// brought are the pods that were brought back to the queue.
type brought struct {
	fwk.Handle
	pods map[string]*v1.Pod
}

func (b *brought) Activate(_ logr.Logger, pods map[string]*v1.Pod) { maps.Copy(b.pods, pods) }

// scene is a cluster in which gangs are planned beside the scheduling cycles.
type scene struct {
	*world
	t      testing.TB
	plugin *Plugin
	nodes  []*liveNode
	queue  *brought
	// jobs are what was started and has not run.
	jobs   []func()
	number int
	// gpus are those of a node that is added.
	gpus int64
}

func newScene(t testing.TB, nodes int, gpus int64, limits Limits) *scene {
	s := &scene{world: newWorld(), t: t, queue: &brought{pods: map[string]*v1.Pod{}}, gpus: gpus}
	s.limits = limits.withDefaults()
	m := model.New(model.Deps{})
	s.registry.requests = m.Requests
	s.plugin = &Plugin{
		handle: s.queue, model: m, gangs: s.registry, planner: gangplanner.Planner{Model: m}, policy: func() string { return fleet.PolicyPack }, ended: t.Context(),
		start: func(work func()) { s.jobs = append(s.jobs, work) },
	}
	for range nodes {
		s.addNode()
	}
	return s
}

func (s *scene) addNode() {
	s.number++
	name := fmt.Sprintf("n%d", s.number)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"topology.kubernetes.io/rack": fmt.Sprintf("r%d", s.number/3)}}}
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("192"), v1.ResourceMemory: resource.MustParse("1Ti"), "nvidia.com/gpu": *resource.NewQuantity(s.gpus, resource.DecimalSI),
	}
	s.nodes = append(s.nodes, &liveNode{generation: int64(s.number), node: node, gpus: s.gpus})
	gpuNode := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for g := range int(s.gpus) {
		gpuNode.Status.Devices = append(gpuNode.Status.Devices, v1alpha1.GPUDevice{
			UUID: fmt.Sprintf("GPU-%s-%d", name, g), Index: g, Minor: g, PCIBusID: fmt.Sprintf("0000:%02x:00.0", g), Product: "H100",
			Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"},
		})
	}
	s.plugin.model.SetHardware(fleetview.NewReader().Read(gpuNode))
}

// infos are the nodes as the scheduler gives them to plugins.
func (s *scene) infos() []fwk.NodeInfo {
	var list []fwk.NodeInfo
	for _, n := range s.nodes {
		list = append(list, n)
	}
	return list
}

// sized returns a member of a gang that requests GPUs.
func sized(gang string, index, least int, gpus int64) *v1.Pod {
	p := pod(index, least, "")
	p.Name, p.UID = fmt.Sprintf("%s-%d", gang, index), types.UID(fmt.Sprintf("uid-%s-%d", gang, index))
	p.Labels[gangplan.PodGroup] = gang
	p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	return p
}

// cycle runs the scheduling cycle of a member as far as its gang matters, and binds it if it gets a node.
func (s *scene) cycle(pod *v1.Pod) string {
	infos := s.infos()
	s.plugin.model.Sync(infos)
	node, text, _, err := s.plugin.decide(pod, infos)
	if err != nil {
		s.t.Fatal(err)
	}
	if node == "" {
		return text
	}
	at := slices.IndexFunc(s.nodes, func(n *liveNode) bool { return n.node.Name == node })
	if at < 0 {
		// The scheduler's own filters refuse a node that has gone: the gang is planned again.
		s.replan(pod, map[string]bool{}, "the node has gone")
		return "refused"
	}
	others, ok := s.reserve(pod, node)
	if !ok {
		return "refused"
	}
	s.place(at, pod)
	for _, other := range others {
		s.queue.pods["ml/"+other.Name] = other
	}
	if _, complete, _ := s.permit(pod); complete {
		for uid, node := range maps.Clone(s.of(pod).plan.nodes) {
			bound := s.of(pod).pods[uid].DeepCopy()
			s.bind(bound, node)
			bound.Spec.NodeName = node
			s.set(bound)
		}
	}
	return node
}

// place puts a pod on a node, which must have enough for it.
func (s *scene) place(at int, pod *v1.Pod) {
	n := s.nodes[at]
	n.pods = append(n.pods, pod)
	s.touch(n)
	if used, all := n.GetRequested().(amounts), n.GetAllocatable(); used.gpus > n.gpus || len(n.pods) > all.GetAllowedPodNumber() {
		s.t.Fatalf("%s has %d GPUs in use of %d, and %d pods of %d", n.node.Name, used.gpus, n.gpus, len(n.pods), all.GetAllowedPodNumber())
	}
}

func (s *scene) touch(n *liveNode) {
	s.number++
	n.generation = int64(s.number)
}

// other places a pod of no gang on the first node that has enough beside what is held, from a position on.
func (s *scene) other(from int, gpus int64) bool {
	s.number++
	p := sized("other", s.number, 1, gpus)
	p.Labels = nil
	c := &cycle{seeker: s.seeker(p, gangplan.Key{})}
	for i := range s.nodes {
		n := s.nodes[(from+i)%len(s.nodes)]
		if used := n.GetRequested().(amounts); used.gpus+gpus <= n.gpus && s.plugin.lacks(c, p, n) == nil {
			s.place((from+i)%len(s.nodes), p)
			return true
		}
	}
	return false
}

// work runs what was started beside the cycles.
func (s *scene) work() {
	jobs := s.jobs
	s.jobs = nil
	for _, job := range jobs {
		job()
	}
}

// TestBeside: a gang that takes more than a cycle may is planned beside it. What happens in between is taken into account.
func TestBeside(t *testing.T) {
	const size = 8
	create := func(s *scene) {
		for i := range size {
			s.set(sized("train", i, size, 2))
		}
	}
	tests := map[string]struct {
		between func(s *scene)
		want    string // what the first member gets from the cycle after the plan: a node, or a text
	}{
		"nothing":                        {func(*scene) {}, "n"},
		"places that are left elsewhere": {func(s *scene) { s.other(0, 4) }, "n"},
		"too many places are taken": {func(s *scene) {
			for s.other(0, 4) {
			}
		}, "is planned again, since"},
		"a member is deleted": {func(s *scene) { s.remove(sized("train", 3, size, 2)) }, "7 of 8 members of gang ml/train exist"},
		"a member is added":   {func(s *scene) { s.set(sized("train", 9, size, 2)) }, "n"},
		"the gang is deleted": {func(s *scene) {
			for i := range size {
				s.remove(sized("train", i, size, 2))
			}
		}, "the gang of the pod is not known"},
		"a node is deleted": {func(s *scene) { s.nodes = s.nodes[1:] }, "n"},
		"a node of the plan is deleted": {func(s *scene) {
			s.work()
			place := s.train().job.q.result.Places["uid-train-0"]
			s.nodes = slices.DeleteFunc(s.nodes, func(n *liveNode) bool { return n.node.Name == place.Node })
		}, "is planned again, since 2 of its 8 places were taken"},
		"a node is added": {func(s *scene) { s.addNode() }, "n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 6, 4, Limits{CycleSteps: 1})
			create(s)
			first := sized("train", 0, size, 2)
			want := "berth: gang ml/train is being planned: 8 members, since 2026-11-24T12:00:00Z"
			for _, i := range []int{0, 5} {
				if text := s.cycle(sized("train", i, size, 2)); text != want {
					t.Fatalf("member %d: %s; want %s", i, text, want)
				}
			}
			clear(s.queue.pods)
			test.between(s)
			s.work()
			if s.of(first) != nil && s.queue.pods["ml/train-0"] == nil {
				t.Errorf("the first member is not brought back, but %v", s.queue.pods)
			}
			text := s.cycle(first)
			if !strings.Contains(text, test.want) {
				t.Errorf("the first member gets %q; want %q", text, test.want)
			}
			if g := s.of(first); test.want == "n" && (g.plan == nil || len(g.plan.nodes) < size) {
				t.Errorf("the first member gets %q by the plan %v; want places for %d members", text, g.plan, size)
			}
			s.overdue()
			if s.job != nil {
				t.Error("the result is still there")
			}
		})
	}
}

// TestPodsOfANode: members of two kinds, of which a node has enough of all but of pods, are planned for as many nodes as that takes, in a
// cycle and beside it.
func TestPodsOfANode(t *testing.T) {
	for name, steps := range map[string]uint64{"in a cycle": 0, "beside": 1} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 3, 8, Limits{CycleSteps: steps})
			const size = 280
			for i := range size {
				p := sized("train", i, size, 1)
				if i >= 20 {
					delete(p.Spec.Containers[0].Resources.Requests, "nvidia.com/gpu")
				}
				s.set(p)
			}
			first := s.of(sized("train", 0, size, 1)).pods["uid-train-0"]
			text := s.cycle(first)
			if len(s.jobs) > 0 {
				s.work()
				text = s.cycle(first)
			}
			on := map[string]int{}
			for _, node := range s.of(first).plan.nodes {
				on[node]++
			}
			if !strings.HasPrefix(text, "n") || len(on) != 3 || max(on["n1"], on["n2"], on["n3"]) > 100 {
				t.Errorf("%s: %v; want at most 100 pods on each of three nodes", text, on)
			}
		})
	}
}

// TestBesideWait: one gang is planned at a time beside the cycles, the others in the order of the line; a small gang need not wait.
func TestBesideWait(t *testing.T) {
	s := newScene(t, 6, 4, Limits{CycleSteps: 5000})
	for _, gang := range []string{"a", "b", "c"} {
		for i := range 12 {
			s.set(sized(gang, i, 12, 1))
		}
	}
	s.set(sized("small", 0, 1, 1))
	a, b, c := sized("a", 0, 12, 1), sized("b", 0, 12, 1), sized("c", 0, 12, 1)
	if text := s.cycle(a); !strings.Contains(text, "a is being planned: 12 members") {
		t.Fatal(text)
	}
	for _, pod := range []*v1.Pod{c, b} {
		if text, want := s.cycle(pod), "berth: gang ml/"+pod.Labels[gangplan.PodGroup]+" is planned once gang ml/a is"; text != want {
			t.Errorf("%s; want %s", text, want)
		}
	}
	if node := s.cycle(sized("small", 0, 1, 1)); !strings.HasPrefix(node, "n") {
		t.Errorf("the small gang gets %q", node)
	}
	s.work()
	clear(s.queue.pods)
	if node := s.cycle(a); !strings.HasPrefix(node, "n") {
		t.Fatal(node)
	}
	if s.queue.pods["ml/b-0"] == nil {
		t.Errorf("b is not brought back, but %v", slices.Sorted(maps.Keys(s.queue.pods)))
	}
	if text := s.cycle(b); !strings.Contains(text, "b is being planned") {
		t.Error(text)
	}
	// A result that nobody uses is dropped, and the next gang has its turn.
	s.work()
	s.clock.Step(s.limits.Reserve + 1)
	s.overdue()
	again, _ := s.overdue()
	var names []string
	for _, out := range again {
		for _, pod := range out.pods {
			names = append(names, pod.Name)
		}
	}
	if s.job != nil || !slices.Contains(names, "c-0") {
		t.Errorf("%v are brought back; want c-0 among them, and no job", names)
	}
}

// TestBesideWalk: whatever comes and goes while gangs are planned, no node gets more than it has, and a plan that is made beside the cycles
// is the one that the cycle would have made.
func TestBesideWalk(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := newScene(t, 6, 4, Limits{CycleSteps: 1})
		size, gpus := 2+random.IntN(6), 1+random.Int64N(3)
		least := 1 + random.IntN(size)
		for i := range size {
			s.set(sized("train", i, least, gpus))
		}
		next := size
		for range 60 {
			switch dice := random.IntN(20); {
			case dice < 6:
				s.other(random.IntN(len(s.nodes)), 1+random.Int64N(4))
			case dice < 10:
				if n := s.nodes[random.IntN(len(s.nodes))]; len(n.pods) > 0 && n.pods[0].Labels == nil {
					n.pods = n.pods[1:]
					s.touch(n)
				}
			case dice < 11 && len(s.nodes) > 3:
				if n := s.nodes[0]; !slices.ContainsFunc(n.pods, func(p *v1.Pod) bool { return p.Labels != nil }) {
					s.nodes = s.nodes[1:]
				}
			case dice < 12:
				s.addNode()
			case dice < 13:
				s.set(sized("train", next, least, gpus))
				next++
			case dice < 14:
				if g := s.train(); g != nil && g.plan == nil {
					if list := s.pending(g); len(list) > least {
						s.remove(list[random.IntN(len(list))])
					}
				}
			case dice < 16:
				s.work()
			default:
				s.step(random, counts)
			}
			s.clock.Step(100_000_000)
			s.overdue()
		}
	}
	t.Log(counts)
	for _, what := range []string{"planned beside", "planned again", "a node", "refused"} {
		if counts[what] < 20 {
			t.Errorf("%d times %s; want at least 20", counts[what], what)
		}
	}
}

// step runs the cycle of a random member of the gang, and compares what is planned beside it with what it would have planned itself.
func (s *scene) step(random *rand.Rand, counts map[string]int) {
	g := s.train()
	if g == nil {
		return
	}
	list := s.pending(g)
	if len(list) == 0 {
		return
	}
	jobs := len(s.jobs)
	text := s.cycle(list[random.IntN(len(list))])
	switch {
	case strings.Contains(text, "is planned again"):
		counts["planned again"]++
	case strings.Contains(text, "waits as a whole"):
		counts["refused"]++
	case len(text) < 4:
		counts["a node"]++
	}
	if len(s.jobs) == jobs {
		return
	}
	counts["planned beside"]++
	q := s.ask(g, g.priority(), s.plugin.model.Version(), s.infos())
	q.Budget = core.Budget{}
	want, why, err := s.plugin.plan(&q)
	job, work := g.job, s.jobs[jobs]
	s.jobs[jobs] = func() {
		work()
		var got map[types.UID]gangplanner.Place
		if job.q.result != nil {
			got = job.q.result.Places
		}
		same := maps.EqualFunc(got, want, func(a, b gangplanner.Place) bool { return a.Node == b.Node })
		if err != nil || job.err != nil || !same || job.reason != why {
			s.t.Fatalf("planned beside: %v, %q, %v; want %v, %q, %v", got, job.reason, job.err, want, why, err)
		}
	}
}

// TestPlace: newer pods come before the members of a large gang but for the first ones, and before the more of them the less new they are.
// The gang keeps its place before other gangs.
func TestPlace(t *testing.T) {
	w := newWorld()
	for i := range 1000 {
		w.set(sized("train", i, 1000, 1))
	}
	w.mu.Lock()
	since := w.train().since
	w.mu.Unlock()
	before := func(at time.Time) (count int) {
		for i := range 1000 {
			if time, _, _ := w.place(queued{pod: sized("train", i, 1000, 1)}); !time.After(at) {
				count++
			}
		}
		return count
	}
	for after, want := range map[time.Duration]int{-1: 0, 0: atOnce, 1: atOnce, time.Second: atOnce + 250, time.Minute: 1000} {
		if got := before(since.Add(after)); got != want {
			t.Errorf("%d members come before a pod that is %v newer; want %d", got, after, want)
		}
	}
	// When the gang is brought back after an hour, the newer pods come first again.
	w.clock.Step(time.Hour)
	w.planned(t, "n0", slices.Collect(maps.Values(w.train().pods))...)
	if got := before(w.clock.Now()); got != atOnce {
		t.Errorf("%d members come before a pod of now; want %d", got, atOnce)
	}
}

// TestBesideGone: a gang that has ended since it was asked about does not take the turn of others.
func TestBesideGone(t *testing.T) {
	s := newScene(t, 2, 4, Limits{CycleSteps: 1})
	s.set(sized("train", 0, 1, 1))
	g := s.train()
	q := s.ask(g, g.priority(), 1, s.infos())
	s.remove(sized("train", 0, 1, 1))
	if text := s.plugin.begin(g, &q, s.infos()); text != unknownGang || s.job != nil || len(s.jobs) > 0 {
		t.Errorf("%q, %d jobs; want none", text, len(s.jobs))
	}
}
