package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	cliqueLabel = "nvidia.com/gpu.clique"
	// cliqueNodes is how many nodes a clique has.
	cliqueNodes = 4
	// fabric is the UUID of the fabric's cluster.
	fabric = "7f3c1ab2-5d6e-4c91-9a44-3b0e6f2d8c57"

	urgentClass = "urgent"

	gateGroups   = "GenericWorkload"
	gateTopology = "TopologyAwareWorkloadScheduling"
)

// modesLab is a cluster of two cliques of four nodes, whose kubelets allocate the GPUs of H100 machines, with the scheduler as it ships.
type modesLab struct {
	*installed
	scheduler *schedulerTest
	nodes     map[string]*rig
}

// gangOf is a gang of a test: labels of its pods, or a PodGroup that they name.
type gangOf struct {
	pods  []*corev1.Pod
	group *schedulingv1beta1.PodGroup
}

// TestGangModes runs gangs with members of 8 GPUs in the three modes of the scheduler: gangs of labels without feature gates, and
// PodGroups of Kubernetes without the gate of topology and with it. The API server and the controllers have both gates. The scheduler is
// the one of the chart, with its image and its rights; the label of the clique is the agent's.
func TestGangModes(t *testing.T) {
	onOwnCluster(t, 2)
	l := newModesLab(t)
	t.Run("Off", func(t *testing.T) { l.testOff(t) })
	t.Run("WithoutTopology", func(t *testing.T) { l.testWithoutTopology(t) })
	t.Run("WithTopology", func(t *testing.T) { l.testWithTopology(t) })
	t.Run("Rights", func(t *testing.T) { l.scheduler.testRights(t) })
}

func newModesLab(t *testing.T) *modesLab {
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("scheduler: {enabled: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	machines, cliques := map[string]string{}, map[string]string{}
	for i := range 2 * cliqueNodes {
		name := fmt.Sprintf("hollow-%d", i)
		machines[name], cliques[name] = "h100x8", cliqueOf(name)
	}
	c := ownCluster(t, sandbox.Options{
		Nodes: 1, Hollow: len(machines), Profile: profileName(), NodeProfiles: machines, NodeCliques: cliques,
		FeatureGates:  map[string]bool{gateGroups: true, gateTopology: true},
		RuntimeConfig: map[string]string{schedulingv1beta1.SchemeGroupVersion.String(): "true"}, Helm: true, HelmValues: []string{values},
	})
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: urgentClass}, Value: 1000}
	if _, err := c.Client().SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l := &modesLab{installed: &installed{Cluster: c}, scheduler: &schedulerTest{rig: newRig(c)}, nodes: map[string]*rig{}}
	for name := range machines {
		node, err := c.Node(name)
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Cluster: c, node: node}
		r.waitAllocatable(t, 8)
		waitUntil(t, 30*time.Second, "the agent has labelled "+name+", and its GPUNode lists the GPUs", func(ctx context.Context) error {
			of, err := c.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			object, err := r.gpuNode(ctx)
			if err == nil && (of.Labels[cliqueLabel] != cliques[name] || object.Status.Summary.Free != 8) {
				err = fmt.Errorf("its clique is %q, and %d GPUs are free", of.Labels[cliqueLabel], object.Status.Summary.Free)
			}
			return err
		})
		l.nodes[name] = r
	}
	return l
}

// cliqueOf returns the clique of a hollow node.
func cliqueOf(node string) string {
	return fmt.Sprintf("%s.%d", fabric, 1+(node[len(node)-1]-'0')/cliqueNodes)
}

// pod returns a pod with GPUs for the nodes of the cliques.
func (l *modesLab) pod(name string, gpus int) *corev1.Pod {
	pod := podWithGPUs(name, gpus)
	pod.Spec.SchedulerName = schedulerName
	pod.Spec.NodeSelector = map[string]string{sandbox.HollowLabel: "true"}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: sandbox.HollowLabel, Operator: corev1.TolerationOpExists}}
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	return pod
}

// labelled returns a gang whose pods have labels.
func (l *modesLab) labelled(name string, members int, annotations map[string]string) *gangOf {
	g := &gangOf{}
	for i := range members {
		g.pods = append(g.pods, ofGang(l.pod("", 8), name, i, members, annotations))
	}
	return g
}

// grouped returns a gang whose pods name a PodGroup of Kubernetes.
func (l *modesLab) grouped(name string, members int, topology ...string) *gangOf {
	g := &gangOf{group: &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}}
	g.group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(members)}
	for _, key := range topology {
		level := []schedulingv1beta1.TopologyConstraint{{Key: key}}
		g.group.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: level}
	}
	for i := range members {
		pod := l.pod(fmt.Sprintf("%s-%d", name, i), 8)
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &g.group.Name}
		g.pods = append(g.pods, pod)
	}
	return g
}

// create creates a gang, and deletes it after the test.
func (l *modesLab) create(t *testing.T, g *gangOf) {
	t.Helper()
	t.Cleanup(func() { l.end(t, g) })
	if g.group != nil {
		groups := l.Client().SchedulingV1beta1().PodGroups(g.group.Namespace)
		if _, err := groups.Create(t.Context(), g.group, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, pod := range g.pods {
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
}

// end deletes a gang, if that was not done.
func (l *modesLab) end(t *testing.T, g *gangOf) {
	t.Helper()
	l.scheduler.cleanUp(t, g.pods...)
	if g.group == nil {
		return
	}
	groups := l.Client().SchedulingV1beta1().PodGroups(g.group.Namespace)
	if err := groups.Delete(context.WithoutCancel(t.Context()), g.group.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	g.group = nil
}

// runs waits until all members of a gang run, and checks that each has the 8 linked GPUs of a node by the checkpoint of its kubelet. It
// returns the cliques in which they are.
func (l *modesLab) runs(t *testing.T, g *gangOf) []string {
	t.Helper()
	cliques, nodes := map[string]bool{}, map[string]bool{}
	for _, pod := range g.pods {
		running, err := l.WaitPhase(timeout(t, 30*time.Second), pod.Namespace, pod.Name, corev1.PodRunning)
		if err != nil {
			t.Fatal(err)
		}
		l.nodes[running.Spec.NodeName].checkLinked(t, running, 8)
		cliques[cliqueOf(running.Spec.NodeName)], nodes[running.Spec.NodeName] = true, true
	}
	if len(nodes) != len(g.pods) {
		t.Errorf("%d members are on the nodes %v", len(g.pods), slices.Sorted(maps.Keys(nodes)))
	}
	return slices.Sorted(maps.Keys(cliques))
}

// waits waits until a gang says why it waits: the PodGroup and its first pod, or all pods of one that has none. No member has a node.
func (l *modesLab) waits(t *testing.T, g *gangOf, want string) {
	t.Helper()
	say := g.pods
	if g.group != nil {
		say = g.pods[:1]
		waitUntil(t, 20*time.Second, "the PodGroup says why it waits", func(ctx context.Context) error {
			group, err := l.Client().SchedulingV1beta1().PodGroups(g.group.Namespace).Get(ctx, g.group.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range group.Status.Conditions {
				refused := c.Type == schedulingv1beta1.PodGroupInitiallyScheduled && c.Status == metav1.ConditionFalse
				if refused && strings.Contains(c.Message, want) {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %+v; want %q", group.Status.Conditions, want)
		})
	}
	waitSaysWhy(t, l.Client(), want, say...)
	l.checkNone(t, g)
}

// checkNone checks that no member of a gang has a node.
func (l *modesLab) checkNone(t *testing.T, g *gangOf) {
	t.Helper()
	for _, pod := range g.pods {
		got, err := l.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil || got.Spec.NodeName != "" {
			t.Fatalf("member %s is on node %q: %v; want none", pod.Name, got.Spec.NodeName, err)
		}
	}
}

// single runs a pod with one GPU on a node, so that no member fits there. It takes the place of one that was there before.
func (l *modesLab) single(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pod := l.pod("single-"+node, 1)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	l.scheduler.cleanUp(t, pod)
	return l.scheduler.run(t, pod)[0]
}

// gates sets the feature gates of the scheduler as docs/scheduling.md says, and waits until the next one schedules.
func (l *modesLab) gates(t *testing.T, names ...string) {
	t.Helper()
	began := time.Now()
	gates := map[string]any{}
	for _, name := range names {
		gates[name] = true
	}
	values := l.merged(map[string]any{"scheduler": map[string]any{"enabled": true, "featureGates": gates}})
	if _, err := l.Helm(t.Context(), values, l.chart("upgrade", "--wait", "--timeout", "1m")...); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, takeOver, "only the next scheduler is there, and it has the Lease", func(ctx context.Context) error {
		pod, err := l.scheduler.pod(ctx)
		if err != nil {
			return err
		}
		args, last := pod.Spec.Containers[0].Args, names[len(names)-1]+"=true"
		if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, last) }) {
			return fmt.Errorf("its arguments are %q", args)
		}
		lease, err := l.Client().CoordinationV1().Leases(agentNamespace).Get(ctx, schedulerName, metav1.GetOptions{})
		if err == nil && (lease.Spec.HolderIdentity == nil || !strings.HasPrefix(*lease.Spec.HolderIdentity, pod.Name+"_")) {
			err = errors.New("another one has the Lease")
		}
		return err
	})
	t.Logf("the scheduler with %v schedules after %v", names, time.Since(began).Round(time.Millisecond))
}

// fallBack: with a GPU of each clique in use, a gang waits as a whole while another one runs in both cliques. When one of the GPUs is free,
// the first one runs. It returns the cliques of the first one.
func (l *modesLab) fallBack(t *testing.T, waits, runs *gangOf, why string) []string {
	t.Helper()
	l.single(t, "hollow-1")
	second := l.single(t, "hollow-6")
	l.create(t, waits)
	l.waits(t, waits, why)
	l.create(t, runs)
	if cliques := l.runs(t, runs); len(cliques) != 2 {
		t.Errorf("the gang that falls back is in the cliques %v; want both", cliques)
	}
	l.checkNone(t, waits)
	l.end(t, runs)
	l.scheduler.cleanUp(t, second)
	return l.runs(t, waits)
}

// second are the cliques of which all GPUs are free at the end of fallBack.
func second() []string { return []string{cliqueOf("hollow-7")} }

// testOff: gangs of labels. One that requires a clique gets the one that is free; one that prefers a clique falls back.
func (l *modesLab) testOff(t *testing.T) {
	cliques := l.fallBack(t, l.labelled("required", 4, map[string]string{"berth.dev/topology-required": "clique"}),
		l.labelled("preferred", 4, map[string]string{"berth.dev/topology-preferred": "clique"}),
		"berth: gang default/required waits as a whole: 4 members have to fit in one clique, and at most 3 do")
	if !slices.Equal(cliques, second()) {
		t.Errorf("the gang that requires a clique is in %v; want %v", cliques, second())
	}
}

// testWithoutTopology: a PodGroup runs whole, or none of its pods has a node. While a clique is free, all are in it.
func (l *modesLab) testWithoutTopology(t *testing.T) {
	l.gates(t, gateGroups)
	seven := l.grouped("seven", 7)
	const why = "berth: gang default/seven waits as a whole: 7 members have to fit together, and at most 6 do"
	if cliques := l.fallBack(t, seven, l.grouped("four", 4), why); len(cliques) != 2 {
		t.Errorf("7 members are in the cliques %v; want both", cliques)
	}
	l.end(t, seven)
	four := l.grouped("in-clique", 4)
	l.create(t, four)
	if cliques := l.runs(t, four); !slices.Equal(cliques, second()) {
		t.Errorf("4 members are in the cliques %v; want %v", cliques, second())
	}
	l.end(t, four)
	if left, _ := l.urgent(t, l.grouped("urgent", 8)); len(left) != 0 {
		t.Errorf("pods run beside 8 urgent members of 8 GPUs: %v", left)
	}
}

// testWithTopology: a PodGroup that requires a clique by its constraint is in one, or waits; one that prefers it falls back.
func (l *modesLab) testWithTopology(t *testing.T) {
	l.gates(t, gateGroups, gateTopology)
	preferred := l.grouped("preferred", 4)
	preferred.group.Annotations = map[string]string{"berth.dev/topology-preferred": "clique"}
	required := l.grouped("required", 4, cliqueLabel)
	cliques := l.fallBack(t, required, preferred,
		"berth: gang default/required waits as a whole: 4 members have to fit in one clique, and at most 3 do")
	if !slices.Equal(cliques, second()) {
		t.Errorf("the PodGroup that requires a clique is in %v; want %v", cliques, second())
	}
	l.end(t, required)
	if left, cliques := l.urgent(t, l.grouped("urgent", 4, cliqueLabel)); len(left) != 1 || len(cliques) != 1 {
		t.Errorf("for an urgent PodGroup that requires a clique, and is in %v, only the pods %v run on; want one", cliques, left)
	}
}

// urgent: for a PodGroup of a higher priority the pods end that are in its way. It returns which of two pods run on, one in each clique,
// and where the gang is.
func (l *modesLab) urgent(t *testing.T, g *gangOf) (left, cliques []string) {
	t.Helper()
	singles := []*corev1.Pod{l.single(t, "hollow-1"), l.single(t, "hollow-6")}
	g.group.Spec.PriorityClassName = urgentClass
	for _, pod := range g.pods {
		pod.Spec.PriorityClassName = urgentClass
	}
	l.create(t, g)
	cliques = l.runs(t, g)
	for _, pod := range singles {
		got, err := l.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && got.UID == pod.UID {
			left = append(left, pod.Name)
		}
	}
	return left, cliques
}
