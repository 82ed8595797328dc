package scheduler

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/scheduler"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
)

func TestMain(m *testing.M) {
	watch.DefaultChanSize = 100_000 // The fake API server panics when a client is so far behind.
	os.Exit(m.Run())
}

// sentences returns what events and conditions say of the pods of a gang.
func (l *lab) sentences(t *testing.T, gang string) string {
	t.Helper()
	var all strings.Builder
	list, err := l.client.EventsV1().Events("ml").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if e := &list.Items[i]; strings.HasPrefix(e.Regarding.Name, gang+"-") {
			all.WriteString(e.Reason + ": " + e.Note + "\n")
		}
	}
	pods, err := l.client.CoreV1().Pods("ml").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if strings.HasPrefix(pods.Items[i].Name, gang+"-") {
			all.WriteString(l.why(t, pods.Items[i].Name) + "\n")
		}
	}
	return all.String()
}

// TestGangBadInput: a gang with bad input, or of which a part cannot be scheduled, has none of its members on nodes or as many as it says,
// and a sentence says why; a gang and a pod that are created after it are placed at once.
func TestGangBadInput(t *testing.T) {
	one := func(index int, change func(*corev1.Pod)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			if pod.Name == fmt.Sprintf("bad-%d", index) {
				change(pod)
			}
		}
	}
	label := func(name, value string) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Labels[name] = value } }
	const minimum = "berth.dev/min-member"
	tests := map[string]struct {
		members int
		gpus    int
		change  func(*corev1.Pod)
		want    int // members on nodes
		say     string
	}{
		"more than there are":  {members: 2, change: label(minimum, "3"), say: "GangWaiting: 2 of 3 members of gang ml/bad exist"},
		"negative":             {members: 2, change: label(minimum, "-1"), say: `is "-1", not a whole number`},
		"no number":            {members: 2, change: label(minimum, "two"), say: `is "two", not a whole number`},
		"1e9":                  {members: 2, change: label(minimum, "1e9"), say: `is "1e9", not a whole number`},
		"a billion":            {members: 2, change: label(minimum, "1000000000"), say: "GangRefused: 2 of 1000000000 members of gang ml/bad exist, and a gang can have only 4096"},
		"two values":           {members: 3, change: one(1, label(minimum, "3")), say: "two values of berth.dev/min-member"},
		"two schedulers":       {members: 3, change: one(1, func(pod *corev1.Pod) { pod.Spec.SchedulerName = "default-scheduler" }), say: "two values of spec.schedulerName"},
		"two priorities":       {members: 3, change: one(1, func(pod *corev1.Pod) { pod.Spec.Priority = new(int32(5)) }), say: "two values of spec.priority"},
		"an unknown level":     {members: 2, change: annotated("berth.dev/topology-required", "example.com/room"), say: "no node has the topology level example.com/room"},
		"no level":             {members: 2, change: annotated("berth.dev/topology-required", "in one room, please"), say: "neither a level"},
		"larger than any node": {members: 2, gpus: 5, say: "at most 0 do"},
		"no node is selected":  {members: 2, change: func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"room": "9"} }, say: "at most 0 do"},
		"a volume is missing": {members: 2, change: one(0, func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"}}}}
		}), say: "bad-0 of it cannot be scheduled, see its condition"},
		"a volume of one above the minimum is missing": {members: 3, change: one(0, func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"}}}}
		}), want: 2, say: `persistentvolumeclaim "none" not found`},
		"one above the minimum has a scheduling gate": {members: 3, change: one(0, func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}}
		}), want: 2},
		"members that repel one another from racks": {members: 4, change: func(pod *corev1.Pod) {
			pod.Labels[minimum] = "4"
			apart(pod)
			pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = "topology.kubernetes.io/rack"
		}, say: "didn't match pod anti-affinity rules"},
		"nominated for a node, and larger than any": {members: 2, gpus: 5, change: func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n0" }, say: "at most 0 do"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := gangLab(t, 4)
			// DynamicResources ends PostFilter with an error for a pod that PreFilter refused before it (1.37.1): the
			// plan is given up after Reserve.
			l.limits = gangs.Limits{Say: 500 * time.Millisecond, Look: 100 * time.Millisecond, Reserve: time.Second}
			l.runGangs(t)
			change := test.change
			if change == nil {
				change = func(*corev1.Pod) {}
			}
			l.create(t, "bad", test.members, 2, test.gpus, change)
			time.Sleep(200 * time.Millisecond)
			began := time.Now()
			l.create(t, "good", 2, 2, 4)
			l.add(t, makePod("single", 4, 1))
			await(t, 5*time.Second, func() string {
				if placed := l.placed(t); len(nodesOf(placed, "good")) != 2 || placed["single"] == "" {
					return fmt.Sprintf("placed: %v", placed)
				}
				return ""
			})
			t.Logf("the others are placed after %v", time.Since(began).Round(time.Millisecond))
			await(t, 8*time.Second, func() string {
				if text := l.sentences(t, "bad"); !strings.Contains(text, test.say) {
					return fmt.Sprintf("no sentence has %q: %s", test.say, text)
				}
				if nodes := nodesOf(l.placed(t), "bad"); len(nodes) != test.want {
					return fmt.Sprintf("members on %v; want %d", nodes, test.want)
				}
				return ""
			})
		})
	}
}

// TestGangNominated: a nomination of an earlier scheduler for a gang that does not fit keeps no pod from the node.
func TestGangNominated(t *testing.T) {
	l := gangLab(t, 1)
	l.runGangs(t)
	l.create(t, "train", 2, 2, 4, func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n0" })
	time.Sleep(300 * time.Millisecond)
	l.schedule(t, makePod("single", 4, 1))
}

// TestGangLoop: a gang of which other plugins refuse each plan does not keep the scheduler busy.
func TestGangLoop(t *testing.T) {
	l := gangLab(t, 8)
	l.runGangs(t)
	l.create(t, "train", 8, 8, 1, func(pod *corev1.Pod) {
		apart(pod)
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = "topology.kubernetes.io/rack"
	})
	before := attempts(t)
	time.Sleep(3 * time.Second)
	got := attempts(t) - before
	t.Logf("%v attempts in 3 s", got)
	if got > 200 {
		t.Errorf("%v attempts in 3 s; want a few plans of 8 members", got)
	}
}

// attempts returns how often schedulers of this process have tried to schedule a pod.
func attempts(t *testing.T) (sum float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "scheduler_schedule_attempts_total" {
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestGangLeft: a pod that waits with its gang and is taken from it is scheduled alone.
func TestGangLeft(t *testing.T) {
	l := gangLab(t, 1)
	l.runGangs(t)
	l.create(t, "train", 2, 2, 3)
	await(t, 10*time.Second, func() string {
		if text := l.why(t, "train-1"); !strings.Contains(text, "waits as a whole") {
			return "it is not refused: " + text
		}
		return ""
	})
	pod, err := l.client.CoreV1().Pods("ml").Get(t.Context(), "train-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Labels, pod.ResourceVersion = nil, "2"
	if _, err := l.client.CoreV1().Pods("ml").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.all(t, "train", 1)
}

// TestGangNodeGone: members on a node that does not exist do not count, and the others wait until these are replaced.
func TestGangNodeGone(t *testing.T) {
	l := gangLab(t, 3)
	gone := member("train", 0, 3, 4)
	gone.Spec.NodeName = "gone"
	l.add(t, gone)
	l.runGangs(t)
	l.add(t, member("train", 1, 3, 4))
	l.add(t, member("train", 2, 3, 4))
	await(t, 10*time.Second, func() string {
		if text := l.why(t, "train-1"); !strings.Contains(text, "1 of its members are on nodes that do not exist") {
			return "it is not refused: " + text
		}
		return ""
	})
	if err := l.client.CoreV1().Pods("ml").Delete(t.Context(), "train-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := member("train", 0, 3, 4)
	again.UID = "again"
	l.add(t, again)
	l.all(t, "train", 3)
}

// TestGangsInFront: a gang behind very many others is placed as soon as they have been.
func TestGangsInFront(t *testing.T) {
	count, limit := 500, 30*time.Second
	if os.Getenv("BERTH_SOAK") == "1" {
		count, limit = 10_000, 10*time.Minute
	}
	tests := map[string]int{"that are placed": 0, "that do not fit": 5}
	for name, gpus := range tests {
		t.Run(name, func(t *testing.T) {
			l := gangLab(t, max(4, count/50))
			l.grow(t, 110)
			l.options = []scheduler.Option{scheduler.WithPodMaxBackoffSeconds(10)}
			l.runGangs(t)
			go func() {
				for range l.bound {
				}
			}()
			began := time.Now()
			for i := range count {
				l.add(t, member(fmt.Sprintf("small%d", i), 0, 1, gpus, func(pod *corev1.Pod) {
					for _, list := range []corev1.ResourceList{pod.Spec.Containers[0].Resources.Limits, pod.Spec.Containers[0].Resources.Requests} {
						delete(list, corev1.ResourceCPU)
						delete(list, corev1.ResourceMemory)
					}
				}))
			}
			created := time.Now()
			l.create(t, "big", 4, 4, 4)
			await(t, limit, func() string {
				object, err := l.client.CoreV1().Pods("ml").Get(t.Context(), "big-3", metav1.GetOptions{})
				if err != nil || object.Spec.NodeName == "" {
					return fmt.Sprintf("the last gang has no node: %v, %s; %d pods have one", err, l.why(t, "big-3"), len(l.placed(t)))
				}
				return ""
			})
			l.all(t, "big", 4)
			t.Logf("%d gangs created in %v; the last one placed %v later", count, created.Sub(began).Round(time.Millisecond), time.Since(created).Round(time.Millisecond))
		})
	}
}

// grow lets each node have so many pods.
func (l *lab) grow(t *testing.T, pods int) {
	t.Helper()
	list, err := l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		n := &list.Items[i]
		n.Status.Allocatable = n.Status.Allocatable.DeepCopy()
		amount := n.Status.Allocatable[corev1.ResourcePods]
		amount.Set(int64(pods))
		n.Status.Allocatable[corev1.ResourcePods] = amount
		if _, err := l.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGangLarge: the largest gang is placed.
func TestGangLarge(t *testing.T) {
	members := 256
	if os.Getenv("BERTH_SOAK") == "1" {
		members = 4096
	}
	l := gangLab(t, members/4)
	l.runGangs(t)
	began := time.Now()
	l.create(t, "large", members, members, 1)
	created := time.Now()
	await(t, 5*time.Minute, func() string {
		if on := len(nodesOf(l.placed(t), "large")); on != members {
			time.Sleep(200 * time.Millisecond)
			return fmt.Sprintf("%d of %d members are on nodes", on, members)
		}
		return ""
	})
	t.Logf("%d members created in %v, placed %v later", members, created.Sub(began).Round(time.Millisecond), time.Since(created).Round(time.Millisecond))
}
