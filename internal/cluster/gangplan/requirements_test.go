package gangplan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

func cpuPod(name string, options ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}
	for _, o := range options {
		o(p)
	}
	return p
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func large(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("2") }

func claims(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	}
}

// ask asks about a gang. Nodes n0 to n9 exist, by that index.
func ask(t *testing.T, view *Gang) Requirements {
	t.Helper()
	q, err := Require(Input{
		View: view, Levels: DefaultLevels(),
		Node: func(p *corev1.Pod) (int, bool) {
			switch name := p.Spec.NodeName; {
			case name == "":
				return gang.Unbound, true
			case strings.HasPrefix(name, "n"):
				return int(name[1] - '0'), true
			}
			return 0, false
		},
		Requests: func(p *corev1.Pod) []fleet.Shape {
			return []fleet.Shape{{CPU: p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// show writes the members as name/class@node.
func show(q *Requirements) string {
	var words []string
	for i, m := range q.Gang.Members {
		text := q.Members[i].Name + "/" + string(rune('0'+m.Class))
		if m.Node != gang.Unbound {
			text += "@" + string(rune('0'+m.Node))
		}
		words = append(words, text)
	}
	return strings.Join(words, " ")
}

func TestRequirementsMembers(t *testing.T) {
	tests := map[string]struct {
		view         Gang
		want         string
		wantMin      int
		wantRequired int
	}{
		"in the order of ranks":                {view: Gang{Min: 2, Members: []*corev1.Pod{cpuPod("a"), cpuPod("b"), cpuPod("c")}}, want: "a/0 b/0 c/0", wantMin: 2, wantRequired: gang.Anywhere},
		"classes by signature":                 {view: Gang{Min: 3, Members: []*corev1.Pod{cpuPod("a"), cpuPod("b", large), cpuPod("c")}}, want: "a/0 b/1 c/0", wantMin: 3, wantRequired: gang.Anywhere},
		"those with a node first":              {view: Gang{Min: 2, Members: []*corev1.Pod{cpuPod("a"), cpuPod("b", on("n3")), cpuPod("c")}}, want: "b/0@3 a/1 c/1", wantMin: 2, wantRequired: gang.Anywhere},
		"segments keep the order":              {view: Gang{Min: 2, Members: []*corev1.Pod{cpuPod("a"), cpuPod("b", on("n3"))}, Topology: Topology{SegmentLevel: rack, SegmentSize: 2}}, want: "a/0 b/1@3", wantMin: 2, wantRequired: gang.Anywhere},
		"a node that is gone":                  {view: Gang{Min: 2, Members: []*corev1.Pod{cpuPod("a"), cpuPod("b", on("gone"))}}, want: "a/0", wantMin: 1, wantRequired: gang.Anywhere},
		"some are done":                        {view: Gang{Min: 3, Done: 2, Members: []*corev1.Pod{cpuPod("a"), cpuPod("b")}}, want: "a/0 b/0", wantMin: 1, wantRequired: gang.Anywhere},
		"a claim of two members is on a node":  {view: Gang{Min: 2, Members: []*corev1.Pod{cpuPod("a", claims("c")), cpuPod("b", claims("c"))}}, want: "a/0 b/0", wantMin: 2, wantRequired: 4},
		"claims of one member each are on any": {view: Gang{Min: 2, Members: []*corev1.Pod{cpuPod("a", claims("c")), cpuPod("b", claims("d"))}}, want: "a/0 b/1", wantMin: 2, wantRequired: gang.Anywhere},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q := ask(t, &test.view)
			if got := show(&q); got != test.want || q.Gang.Min != test.wantMin || q.Gang.Required != test.wantRequired || q.Problem != "" {
				t.Errorf("%s, at least %d, level %d, %q; want %s, %d, %d", got, q.Gang.Min, q.Gang.Required, q.Problem, test.want, test.wantMin, test.wantRequired)
			}
		})
	}
}

func TestLevels(t *testing.T) {
	tests := map[string]struct {
		topology  Topology
		required  int
		preferred int
		segment   gang.Segment
		keys      int
		problem   string
	}{
		"none":                         {required: gang.Anywhere, preferred: 4, keys: 4},
		"required":                     {topology: Topology{Required: rack}, required: 2, preferred: 4, keys: 4},
		"preferred":                    {topology: Topology{Preferred: rack}, required: gang.Anywhere, preferred: 2, keys: 4},
		"the preferred one is wider":   {topology: Topology{Required: rack, Preferred: zone}, required: 2, preferred: 2, keys: 4},
		"one node":                     {topology: Topology{Required: corev1.LabelHostname}, required: 4, preferred: 4, keys: 4},
		"unconstrained":                {topology: Topology{Unconstrained: true}, required: gang.Anywhere, preferred: gang.Anywhere, keys: 4},
		"segments":                     {topology: Topology{Required: zone, SegmentLevel: rack, SegmentSize: 4}, required: 0, preferred: 4, segment: gang.Segment{Level: 2, Size: 4}, keys: 4},
		"a level of its own":           {topology: Topology{Required: "example.com/row"}, required: 0, preferred: 1, keys: 1},
		"a level of its own and other": {topology: Topology{Required: "example.com/row", SegmentLevel: rack, SegmentSize: 2}, keys: 1, problem: `the topology level "example.com/row" cannot`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q := ask(t, &Gang{Min: 1, Members: []*corev1.Pod{cpuPod("a")}, Topology: test.topology})
			if test.problem != "" {
				if !strings.HasPrefix(q.Problem, test.problem) {
					t.Errorf("%q; want %q", q.Problem, test.problem)
				}
				return
			}
			if q.Gang.Required != test.required || q.Gang.Preferred != test.preferred || q.Gang.Segment != test.segment || len(q.Keys) != test.keys || q.Problem != "" {
				t.Errorf("%+v, %v, %q; want levels %d and %d, segments %+v, %d keys", q.Gang, q.Keys, q.Problem, test.required, test.preferred, test.segment, test.keys)
			}
		})
	}
}

func TestCapacity(t *testing.T) {
	node := func(options ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0", Labels: map[string]string{"pool": "a"}}}
		for _, o := range options {
			o(n)
		}
		return n
	}
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: effect}} }
	}
	port := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }
	apart := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "a"}
		term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
	}
	selects := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": value} }
	}
	tests := map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		want int32
	}{
		"by the number of pods":       {pod: cpuPod("a"), node: node(), want: 7},
		"by another resource":         {pod: cpuPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["rdma/hca"] = resource.MustParse("2") }), node: node(), want: 3},
		"by more than a number holds": {pod: cpuPod("a", tooLarge), node: node()},
		"the selector matches":        {pod: cpuPod("a", selects("a")), node: node(), want: 7},
		"the selector does not match": {pod: cpuPod("a", selects("b")), node: node()},
		"a taint":                     {pod: cpuPod("a"), node: node(taint(corev1.TaintEffectNoExecute))},
		"a taint that only repels":    {pod: cpuPod("a"), node: node(taint(corev1.TaintEffectPreferNoSchedule)), want: 7},
		"a taint that is tolerated":   {pod: cpuPod("a", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }), node: node(taint(corev1.TaintEffectNoSchedule)), want: 7},
		"cordoned":                    {pod: cpuPod("a"), node: node(func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"a port of the host":          {pod: cpuPod("a", port), node: node(), want: 1},
		"members repel one another":   {pod: cpuPod("a", apart), node: node(), want: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rules := NewRules(test.pod)
			got := rules.Capacity(test.node, func(corev1.ResourceName) resource.Quantity { return resource.MustParse("7") },
				func(name corev1.ResourceName) bool { return name == corev1.ResourceCPU })
			if got != test.want {
				t.Errorf("%d; want %d", got, test.want)
			}
		})
	}
}

func TestWasWhole(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.Time{Time: time.Unix(second, 0)} }
	bound := func(second int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = "n0"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(second)}}
		}
	}
	created := func(second int64) func(*corev1.Pod) { return func(p *corev1.Pod) { p.CreationTimestamp = at(second) } }
	tests := map[string]struct {
		pods  []*corev1.Pod
		least int32 // 2 if it is 0
		want  bool
	}{
		"created before the others were bound":        {pods: []*corev1.Pod{cpuPod("a", bound(20)), cpuPod("b", created(10))}},
		"created in the second of the binding":        {pods: []*corev1.Pod{cpuPod("a", bound(20)), cpuPod("b", created(20))}},
		"created after the others were bound":         {pods: []*corev1.Pod{cpuPod("a", bound(20)), cpuPod("b", created(21))}, want: true},
		"one of those that wait was created earlier":  {pods: []*corev1.Pod{cpuPod("a", bound(20)), cpuPod("b", created(21)), cpuPod("c", created(5))}},
		"the two were too few":                        {pods: []*corev1.Pod{cpuPod("a", bound(20)), cpuPod("b", created(21)), cpuPod("c", created(5))}, least: 3, want: true},
		"created after one and before another member": {pods: []*corev1.Pod{cpuPod("a", bound(20)), cpuPod("b", created(21)), cpuPod("c", bound(30))}},
		"enough that were done":                       {pods: []*corev1.Pod{cpuPod("a", bound(20))}, least: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			view := &Gang{Min: max(2, test.least), Members: test.pods}
			if test.least == 1 {
				view.Min, view.Done = 3, 2
			}
			if got, _ := WasWhole(view); got != test.want {
				t.Errorf("%v; want %v", got, test.want)
			}
		})
	}
}
