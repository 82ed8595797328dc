package gangs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// running returns a pod of no gang with GPUs on n0 that started with the test.
func running(name string, gpus int64, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)}}
	p.Spec.NodeName, p.Spec.RestartPolicy = "n0", v1.RestartPolicyNever
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}}}}
	p.Status.StartTime = &metav1.Time{Time: start}
	for _, c := range change {
		c(p)
	}
	return p
}

// deadline lets a pod run for some seconds, and end at once then.
func deadline(seconds int64) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ActiveDeadlineSeconds, p.Spec.TerminationGracePeriodSeconds = &seconds, new(int64)
	}
}

// deletedAt has a pod be deleted, with an end so long after the start of the test.
func deletedAt(after time.Duration) func(*v1.Pod) {
	return func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start.Add(after)} }
}

func always(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyAlways }

// TestEndOf checks when pods end at the latest.
func TestEndOf(t *testing.T) {
	tests := map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"a deadline":                         {running("a", 1, deadline(60)), "1m0s true"},
		"a deadline, and a time to end":      {running("a", 1, deadline(60), func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil }), "1m30s true"},
		"not started":                        {running("a", 1, deadline(60), func(p *v1.Pod) { p.Status.StartTime = nil }), "1m10s true"},
		"a service, a deadline":              {running("a", 1, deadline(60), always), "1m0s true"},
		"no deadline":                        {running("a", 1), "unknown true"},
		"a service":                          {running("a", 1, always), "unknown false"},
		"a service that is being deleted":    {running("a", 1, always, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start.Add(time.Second)} }), "1s true"},
		"it should have ended 5 minutes ago": {running("a", 1, deletedAt(10*time.Second-5*time.Minute)), "-4m50s true"},
		"it should have ended even earlier":  {running("a", 1, deletedAt(9*time.Second-5*time.Minute)), "-4m51s false"},
		"a time to end of years":             {running("a", 1, deadline(60), func(p *v1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 1 << 40 }), "24h1m0s true"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			end, ends := endOf(test.pod, start.Add(10*time.Second))
			got := "unknown"
			if !end.IsZero() {
				got = end.Sub(start).String()
			}
			if got = fmt.Sprint(got, " ", ends); got != test.want {
				t.Errorf("got %s; want %s", got, test.want)
			}
		})
	}
}

// TestSeeker checks when a pod that looks for a node ends at the latest: it starts up to 2 s later.
func TestSeeker(t *testing.T) {
	w := newWorld()
	if who := w.seeker(running("a", 1, deadline(60), func(p *v1.Pod) { p.Status.StartTime = nil }), gangplan.Key{}); who.ends != start.Add(62*time.Second) {
		t.Errorf("it ends at %v", who.ends)
	}
	if who := w.seeker(running("a", 1), gangplan.Key{}); !who.ends.IsZero() {
		t.Errorf("a pod without a deadline ends at %v", who.ends)
	}
}

// TestReserved checks which pods a reservation keeps from a node with 8 GPUs: those that do not end before its start, and of which too
// little is left beside the reserved places once the pods before them have ended.
func TestReserved(t *testing.T) {
	key := gangplan.Key{Namespace: "ml", Name: "train"}
	tests := map[string]struct {
		reserved []int64       // the GPUs of the places
		start    time.Duration // 0 is not known
		on       []*v1.Pod
		awaited  string
		gpus     int64
		who      seeker
		want     string
	}{
		"the node is reserved":                    {reserved: []int64{8}, gpus: 1, want: "nvidia.com/gpu"},
		"something is left":                       {reserved: []int64{4, 2}, gpus: 2},
		"too little is left":                      {reserved: []int64{4, 2}, gpus: 3, want: "nvidia.com/gpu"},
		"it ends before the start":                {reserved: []int64{8}, start: time.Minute, gpus: 8, who: seeker{ends: start.Add(time.Minute)}},
		"it ends after the start":                 {reserved: []int64{8}, start: time.Minute, gpus: 1, who: seeker{ends: start.Add(time.Minute + 1)}, want: "nvidia.com/gpu"},
		"it ends, the start is not known":         {reserved: []int64{8}, gpus: 1, who: seeker{ends: start.Add(1)}, want: "nvidia.com/gpu"},
		"a higher priority":                       {reserved: []int64{8}, gpus: 8, who: seeker{priority: 2}},
		"the gang itself":                         {reserved: []int64{8}, gpus: 8, who: seeker{key: key}},
		"beside a pod that is awaited":            {reserved: []int64{4}, on: []*v1.Pod{running("a", 4)}, awaited: "a", gpus: 4},
		"beside a pod that stays":                 {reserved: []int64{4}, on: []*v1.Pod{running("a", 4)}, gpus: 1, want: "nvidia.com/gpu"},
		"beside a pod that ends before the start": {reserved: []int64{4}, start: time.Minute, on: []*v1.Pod{running("a", 4, deadline(60))}, gpus: 4},
		"beside a pod that ends after the start":  {reserved: []int64{4}, start: time.Minute, on: []*v1.Pod{running("a", 4, deadline(61))}, gpus: 1, want: "nvidia.com/gpu"},
		"nothing is free, one ends, one is there": {reserved: []int64{4}, on: []*v1.Pod{running("a", 4), running("b", 4)}, awaited: "a", gpus: 1, want: "nvidia.com/gpu"},
		"devices of claims":                       {reserved: []int64{4}, who: seeker{devices: true}, want: "devices"},
		"devices of claims, before the start":     {reserved: []int64{4}, start: time.Minute, who: seeker{devices: true, ends: start.Add(1)}},
		"no GPU":                                  {reserved: []int64{8}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHolds()
			res := &reservation{awaited: map[types.UID]string{types.UID(test.awaited): "n0"}}
			if test.start > 0 {
				res.start = start.Add(test.start)
			}
			for i, gpus := range test.reserved {
				h.add(&hold{pod: types.UID(fmt.Sprint(i)), gang: key, node: "n0", reservation: res, priority: 1, amounts: amountsOf(running("m", gpus))})
			}
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, all: amounts{cpu: 8000, gpus: 8}, pods: test.on}
			for _, p := range test.on {
				gpus := p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]
				node.used.gpus += gpus.Value()
			}
			who := test.who
			if who.priority == 0 {
				who.priority = 1
			}
			who.amounts = amountsOf(running("new", test.gpus))
			got, held := h.lacks(node, &who, start)
			if held != nil && got == "" {
				got = "devices"
			}
			if string(got) != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

func amountsOf(p *v1.Pod) v1.ResourceList {
	return gangplanner.Amounts(nodeInfo{pods: []*v1.Pod{p}}, func(*v1.Pod) bool { return true })
}

// TestLower checks which pods a gang of the priority 10 can end, and together.
func TestLower(t *testing.T) {
	of := func(group string, index, least int, priority int32) *v1.Pod {
		p := pod(index, least, "n0")
		p.Name, p.UID, p.Spec.Priority = fmt.Sprintf("%s-%d", group, index), types.UID(fmt.Sprintf("%s-%d", group, index)), &priority
		p.Labels[gangplan.PodGroup] = group
		return p
	}
	with := func(priority int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &priority } }
	older := func(p *v1.Pod) { p.Status.StartTime = &metav1.Time{Time: start.Add(-time.Hour)} }
	name := "set"
	inTree := func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name} }
	gone := deletedAt(0)
	coscheduled := func(p *v1.Pod) *v1.Pod {
		p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": p.Labels[gangplan.PodGroup]}
		return p
	}
	tests := map[string]struct {
		pods []*v1.Pod
		want string // the most important first, those that end together joined, with their surplus
	}{
		"none":                            {},
		"of the same priority":            {[]*v1.Pod{running("a", 1, with(10)), running("b", 1, with(11))}, ""},
		"by priority, then by start":      {[]*v1.Pod{running("a", 1, with(3)), running("b", 1, with(4)), running("c", 1, with(3), older)}, "b, c, a"},
		"a gang":                          {[]*v1.Pod{of("other", 0, 2, 1), of("other", 1, 2, 1)}, "other-0+other-1"},
		"surplus":                         {[]*v1.Pod{of("other", 3, 2, 1), of("other", 1, 2, 1), of("other", 0, 2, 1), of("other", 2, 2, 1)}, "other-0+other-1 (1 2), other-2, other-3"},
		"a gang in part":                  {[]*v1.Pod{of("other", 0, 3, 1)}, "other-0"},
		"its own members":                 {[]*v1.Pod{of("train", 0, 2, 1)}, ""},
		"a group of Kubernetes":           {[]*v1.Pod{running("a", 1, inTree), running("b", 1, inTree)}, "a+b"},
		"gangs of two APIs with one name": {[]*v1.Pod{of("other", 0, 1, 1), coscheduled(of("other", 1, 1, 1))}, "other-0, other-1"},
		"pods that are being deleted, by their end": {[]*v1.Pod{
			running("a", 1, deletedAt(time.Minute)), running("b", 1, deletedAt(-5*time.Minute)), running("c", 1, deletedAt(time.Second)),
		}, "a, c, b"},
		"one that ends in more than a minute, one that should have ended long ago": {[]*v1.Pod{
			running("a", 1, deletedAt(time.Minute+1)), running("b", 1, deletedAt(-5*time.Minute-1)), running("c", 1),
		}, "c"},
		"a scheduler has ended them for others": {[]*v1.Pod{
			running("a", 1, deletedAt(15*time.Minute), preempted), running("b", 1, deletedAt(15*time.Minute+1), preempted), running("c", 1),
			running("d", 1, deletedAt(-5*time.Minute-1), preempted), running("e", 1, deletedAt(time.Minute+1), evicted),
		}, "c, a"},
		"a pod that is being deleted, of any priority": {[]*v1.Pod{running("a", 1, with(50), gone), running("b", 1)}, "b, a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for _, p := range test.pods {
				w.set(p)
			}
			node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, pods: test.pods}
			list, _ := w.lower([]fwk.NodeInfo{node}, gangplan.Key{Namespace: "ml", Name: "train"}, 10)
			var got []string
			for _, h := range list {
				var members []string
				for _, p := range h.Pods {
					members = append(members, p.Name)
				}
				text := strings.Join(members, "+")
				if len(h.Surplus) > 0 {
					text += strings.Replace(strings.Replace(fmt.Sprint(h.Surplus), "[", " (", 1), "]", ")", 1)
				}
				got = append(got, text)
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("got %q; want %q", strings.Join(got, ", "), test.want)
			}
		})
	}
}

// TestEndable: whether any pod can end is looked up once for each version of the nodes.
func TestEndable(t *testing.T) {
	with := func(priority int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &priority } }
	gone := running("gone", 1, with(50), func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} })
	w := newWorld()
	steps := []struct {
		version uint64
		pods    []*v1.Pod
		want    bool
	}{
		{1, nil, false},
		{1, []*v1.Pod{running("a", 1)}, false}, // Known for this version.
		{2, []*v1.Pod{running("a", 1, with(10)), running("b", 1, with(11))}, false},
		{3, []*v1.Pod{running("a", 1, with(10)), running("b", 1, with(9))}, true},
		{4, []*v1.Pod{gone}, true},
		{5, []*v1.Pod{running("a", 1, with(10))}, false},
		{6, []*v1.Pod{running("a", 1, deletedAt(-time.Hour))}, false},
		{7, []*v1.Pod{running("a", 1, deletedAt(time.Hour))}, false},
		{8, []*v1.Pod{running("a", 1, deletedAt(10*time.Minute), preempted)}, true},
		{9, []*v1.Pod{running("a", 1, deletedAt(10*time.Minute), evicted)}, false},
	}
	for i, step := range steps {
		w.clock.SetTime(start.Add(time.Duration(step.version) * time.Second))
		if got := w.endable([]fwk.NodeInfo{nodeInfo{pods: step.pods}}, step.version, 10); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// preempted has a pod be ended by a scheduler, and evicted by something else.
func preempted(p *v1.Pod) { disrupted(p, v1.PodReasonPreemptionByScheduler) }

func evicted(p *v1.Pod) { disrupted(p, "EvictionByEvictionAPI") }

func disrupted(p *v1.Pod, reason string) {
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: reason})
}

// TestEndableLater: a pod that is being deleted counts when its end is near, in the same version of the nodes.
func TestEndableLater(t *testing.T) {
	w := newWorld()
	nodes := []fwk.NodeInfo{nodeInfo{pods: []*v1.Pod{running("a", 1, deletedAt(time.Hour)), running("b", 1, deletedAt(2*time.Hour))}}}
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {59*time.Minute - 1, false}, {59 * time.Minute, true}} {
		w.clock.SetTime(start.Add(step.after))
		if got := w.endable(nodes, 1, 10); got != step.want {
			t.Errorf("after %v: %v, want %v", step.after, got, step.want)
		}
	}
	w = newWorld()
	nodes = []fwk.NodeInfo{nodeInfo{pods: []*v1.Pod{running("a", 1, deletedAt(time.Hour), preempted)}}}
	for i, after := range []time.Duration{0, 45*time.Minute - 1, 45 * time.Minute} {
		if w.clock.SetTime(start.Add(after)); w.endable(nodes, 1, 10) != (i == 2) {
			t.Errorf("preempted, after %v: %v", after, i != 2)
		}
	}
}

// TestAgainst checks what is held and reserved against pods that are placed together.
func TestAgainst(t *testing.T) {
	with := func(priority int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &priority } }
	soon := func(p *v1.Pod) { p.Status.StartTime = nil; deadline(50)(p) }
	late := func(p *v1.Pod) { p.Status.StartTime = nil; deadline(100)(p) }
	tests := map[string]struct {
		pods []*v1.Pod
		want string // where something is held, and what is left of GPUs where something is reserved
	}{
		"of a lower priority":           {[]*v1.Pod{running("a", 1), running("b", 1)}, "[n0 n1] map[n0:2]"},
		"of a higher one":               {[]*v1.Pod{running("a", 1, with(9)), running("b", 1, with(9))}, "[n1] map[]"},
		"one is of a lower one":         {[]*v1.Pod{running("a", 1, with(9)), running("b", 1)}, "[n0 n1] map[n0:2]"},
		"they end before the start":     {[]*v1.Pod{running("a", 1, soon), running("b", 1, soon)}, "[n0 n1] map[]"},
		"one ends after the start":      {[]*v1.Pod{running("a", 1, late), running("b", 1, soon)}, "[n0 n1] map[n0:2]"},
		"it is not known when one ends": {[]*v1.Pod{running("a", 1, soon), running("b", 1)}, "[n0 n1] map[n0:2]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			key := gangplan.Key{Namespace: "ml", Name: "train"}
			w.holds.add(&hold{pod: "lost", gang: key, node: "n0", priority: 1, lost: true})
			w.holds.add(&hold{pod: "planned", gang: key, node: "n1", priority: 1})
			w.holds.add(&hold{
				pod: "reserved", gang: key, node: "n0", priority: 1, reservation: &reservation{start: start.Add(time.Minute)},
				amounts: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("6")},
			})
			held, left := w.heldAgainst(test.pods, []fwk.NodeInfo{nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}, all: amounts{gpus: 8}}})
			var nodes []string
			for _, h := range held {
				nodes = append(nodes, h.node)
			}
			gpus := map[string]string{}
			for node, list := range left {
				amount := list["nvidia.com/gpu"]
				gpus[node] = amount.String()
			}
			if got := fmt.Sprint(nodes, " ", gpus); got != test.want {
				t.Errorf("got %s; want %s", got, test.want)
			}
		})
	}
}

// TestEnding checks the order in which pods end.
func TestEnding(t *testing.T) {
	node := nodeInfo{pods: []*v1.Pod{
		running("unknown", 1), running("late", 1, deadline(90)), running("soon", 1, deadline(30)), running("service", 1, always), running("soon too", 1, deadline(30)),
	}}
	got := ""
	for _, h := range newWorld().ending([]fwk.NodeInfo{node}) {
		got += fmt.Sprintf("%s %d, ", h.Pods[0].Name, h.Rank)
	}
	if want := "unknown 3, late 2, soon 1, soon too 1, "; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
}
