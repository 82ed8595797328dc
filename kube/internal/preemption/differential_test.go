package preemption

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"pgregory.net/rapid"
)

// anyCluster draws up to 4 nodes full of pods. All pods started at different times, so that the in-tree plugin has no ties, which it
// would break by the order of a map.
func anyCluster(t *rapid.T) *cluster {
	c := &cluster{budgets: []*policy.PodDisruptionBudget{budget("none", 0), budget("one", 1)}}
	ages := rapid.Permutation(seq(40)).Draw(t, "ages")
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		name := fmt.Sprint("n", i)
		n := st.MakeNode().Name(name).Capacity(map[v1.ResourceName]string{"cpu": "12", "memory": "16Gi", "pods": "20", gpus: "8"}).Obj()
		c.nodes = append(c.nodes, n)
		free, cpu, port := rapid.Permutation(seq(8)).Draw(t, "GPUs"), 12_000, true
		for k := range rapid.SampledFrom([]int{9, 6, 3, 9}).Draw(t, "pods") {
			count := min(len(free), rapid.SampledFrom([]int{1, 0, 2, 4, 1}).Draw(t, "has"))
			p := pod(fmt.Sprint(name, "-", k), name, rapid.SampledFrom([]int32{-1, 0, 0, 0, 3}).Draw(t, "priority"), ages[0], free[:count]...)
			ages, free = ages[1:], free[count:]
			more := min(cpu-1000, rapid.SampledFrom([]int{0, 500, 2000}).Draw(t, "cpu"))
			if more < 0 {
				break
			}
			cpu -= 1000 + more
			p.Req(map[v1.ResourceName]string{"cpu": fmt.Sprint(more, "m")})
			if label := rapid.SampledFrom([]string{"", "", "none", "one"}).Draw(t, "budget"); label != "" {
				p.Label("budget", label)
			}
			if port && rapid.IntRange(0, 5).Draw(t, "port") == 0 {
				p.HostPort(80)
				port = false
			}
			c.pods = append(c.pods, p.Obj())
		}
	}
	return c
}

func seq(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// anyWaiting draws the pod that is to be scheduled.
func anyWaiting(t *rapid.T, count int) *v1.Pod {
	p := st.MakePod().Namespace("ns").Name("waiting").UID("uid-waiting").Priority(rapid.SampledFrom([]int32{2, 2, 4, 0}).Draw(t, "priority of the pod"))
	requests := map[v1.ResourceName]string{"cpu": rapid.SampledFrom([]string{"1", "1", "4", "7"}).Draw(t, "cpu of the pod")}
	if count > 0 {
		requests[gpus] = fmt.Sprint(count)
	}
	if rapid.IntRange(0, 4).Draw(t, "port of the pod") == 0 {
		p.HostPort(80)
	}
	if rapid.IntRange(0, 9).Draw(t, "never") == 0 {
		p.PreemptionPolicy(v1.PreemptNever)
	}
	return p.Req(requests).Obj()
}

// TestSameWithoutGPUs: for a pod that requests no GPUs the outcome is that of DefaultPreemption.
func TestSameWithoutGPUs(t *testing.T) {
	ended := 0
	check := func(r *rapid.T) {
		c, p := anyCluster(r), anyWaiting(r, 0)
		c.pods = append(c.pods, p)
		ours, theirs := c.scheduler(t), c.scheduler(t)
		got, want := ours.preempt(t, c, c.berth(t, ours), p), theirs.preempt(t, c, c.inTree(t, theirs), p)
		if got.String() != want.String() {
			r.Fatalf("%v; want %v", got, want)
		}
		ended += len(got.Victims)
	}
	for range 3 { // 300 cases
		rapid.Check(t, check)
	}
	if ended == 0 {
		t.Error("no pod was ended in any case")
	}
}

// cost is what an outcome costs: violations of budgets, the highest priority, pods.
func (c *cluster) cost(t testing.TB, o outcome) [3]int {
	t.Helper()
	cost := [3]int{0, -1 << 31, len(o.Victims)}
	ended := sets.New(o.Victims...)
	var victims []*preemption.DomainVictim
	for _, p := range c.pods {
		if !ended.Has(p.Name) {
			continue
		}
		cost[1] = max(cost[1], int(corev1helpers.PodPriority(p)))
		info, err := framework.NewPodInfo(p)
		if err != nil {
			t.Fatal(err)
		}
		one, err := preemption.NewVictim([]fwk.PodInfo{info}, corev1helpers.PodPriority(p), fwk.PodKeyType)
		if err != nil {
			t.Fatal(err)
		}
		victims = append(victims, &preemption.DomainVictim{Victim: one})
	}
	cost[0] = violations(victims, c.budgets)
	return cost
}

// TestNotWorseWithGPUs: for a pod with GPUs the outcome ends pods exactly when that of DefaultPreemption does; it has at most as many
// violations of budgets, then at most as high a priority, then at most as many pods; the pod fits without the victims; and it is the
// same again.
func TestNotWorseWithGPUs(t *testing.T) {
	better, same := 0, 0
	check := func(r *rapid.T) {
		c, p := anyCluster(r), anyWaiting(r, rapid.SampledFrom([]int{4, 2, 3, 6, 1}).Draw(r, "GPUs of the pod"))
		c.pods = append(c.pods, p)
		ours, theirs, again := c.scheduler(t), c.scheduler(t), c.scheduler(t)
		got, other := ours.preempt(t, c, c.berth(t, ours), p), theirs.preempt(t, c, c.inTree(t, theirs), p)
		if (len(got.Victims) == 0) != (len(other.Victims) == 0) || got.Code != other.Code {
			r.Fatalf("%v; DefaultPreemption: %v", got, other)
		}
		if repeated := again.preempt(t, c, c.berth(t, again), p); repeated.String() != got.String() {
			r.Fatalf("%v; then %v", got, repeated)
		}
		if len(got.Victims) == 0 {
			return
		}
		a, b := c.cost(t, got), c.cost(t, other)
		switch order := slices.CompareFunc(a[:], b[:], cmp.Compare[int]); {
		case order > 0:
			r.Fatalf("%v costs %v; DefaultPreemption: %v costs %v", got, a, other, b)
		case order < 0:
			better++
		default:
			same++
		}
		after := &cluster{nodes: c.nodes}
		for _, q := range c.pods {
			if !slices.Contains(got.Victims, q.Name) {
				after.pods = append(after.pods, q)
			}
		}
		free := after.scheduler(t)
		if fits := free.preempt(t, after, after.berth(t, free), p); fits.Message != "fits" {
			r.Fatalf("%v; without these: %v", got, fits)
		}
	}
	for range 3 {
		rapid.Check(t, check)
	}
	t.Logf("%d better, %d equal", better, same)
	if better == 0 || same == 0 {
		t.Error("want cases of both kinds")
	}
}

// TestBudgetOfASparedPod: where the victims of a node are DefaultPreemption's, a pod whose budget allows its end counts as no violation,
// although it shares the budget with a pod that is spared.
func TestBudgetOfASparedPod(t *testing.T) {
	c := &cluster{budgets: []*policy.PodDisruptionBudget{budget("one", 1)}}
	add := func(node string, name string, priority int32, age int, cpu, label string, port bool, has ...int) {
		p := pod(name, node, priority, age, has...)
		p.Req(map[v1.ResourceName]string{"cpu": cpu})
		if label != "" {
			p.Label("budget", label)
		}
		if port {
			p.HostPort(80)
		}
		c.pods = append(c.pods, p.Obj())
	}
	for _, name := range []string{"n0", "n1"} {
		c.nodes = append(c.nodes, st.MakeNode().Name(name).Capacity(map[v1.ResourceName]string{"cpu": "12", "memory": "16Gi", "pods": "20", gpus: "8"}).Obj())
	}
	add("n0", "n0-0", 0, 1, "5", "", true, 0)
	add("n0", "n0-1", 0, 2, "5", "", false, 1)
	add("n1", "n1-0", 3, 3, "1", "one", false, 0)
	add("n1", "n1-1", -1, 4, "1", "one", true, 1)
	waiting := st.MakePod().Namespace("ns").Name("waiting").UID("uid-waiting").Priority(4).HostPort(80).Req(map[v1.ResourceName]string{"cpu": "7", gpus: "2"}).Obj()
	c.pods = append(c.pods, waiting)
	s := c.scheduler(t)
	if got := s.preempt(t, c, c.berth(t, s), waiting); !slices.Equal(got.Victims, []string{"n1-1"}) {
		t.Errorf("%v; want the victim n1-1", got)
	}
}

// TestStartTimesDiffer proves that anyCluster has no ties by start.
func TestStartTimesDiffer(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		seen := map[metav1.Time]bool{}
		for _, p := range anyCluster(r).pods {
			if seen[*p.Status.StartTime] {
				r.Fatal("two pods started at the same time")
			}
			seen[*p.Status.StartTime] = true
		}
	})
}
