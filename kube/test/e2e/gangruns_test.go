package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	// gangNodes is how many API nodes there are, each with 8 GPUs and two in a rack.
	gangNodes = 8
	// settleLimit is how long a gang may be bound in part: what the scheduler promises, and the time until the next one has the Lease.
	settleLimit = 30*time.Second + takeOver
)

// gangLab creates gangs on API nodes, and ends pods, nodes and schedulers in between.
type gangLab struct {
	*schedulerLoad
	number int
	gangs  map[string]*randomGang
}

// randomGang is a gang of the lab.
type randomGang struct {
	least int
	// shrunk is true once the test has deleted a member: it may have fewer than its least number from then on.
	shrunk bool
}

// TestGangRuns runs random gangs with the scheduler as it ships, two replicas with the rights of the chart, on API nodes. In between pods
// are deleted, nodes are cordoned, and the leader is killed, deleted, or loses its Lease. After each step no gang is bound in part for
// long, and no node has more pods than GPUs. BERTH_SOAK=1 runs 5,000 steps in place of 60.
func TestGangRuns(t *testing.T) {
	onOwnCluster(t, 1)
	s := gangCluster(t, 2)
	steps, seed := 60, rand.Uint64()
	if os.Getenv(envSoak) != "" {
		steps = 5000
	}
	t.Logf("seed %d, %d steps", seed, steps)
	l := &gangLab{schedulerLoad: &schedulerLoad{schedulerTest: s, random: rand.New(rand.NewPCG(seed, 3))}, gangs: map[string]*randomGang{}}
	t.Run("Kinds", func(t *testing.T) { l.testKinds(t) })
	t.Run("Preempts", func(t *testing.T) { l.testGangPreempts(t) })
	t.Run("Reserved", func(t *testing.T) { l.testGangReserved(t) })
	ends := 0
	for step := range steps {
		switch n := l.random.IntN(20); {
		case n < 10:
			l.create(t)
		case n < 15:
			l.deleteGang(t)
		case n < 17:
			l.deleteMember(t)
		case n < 19:
			l.cordon(t)
		case step >= ends*50:
			// A leader ends at most every fiftieth step: the kubelet starts the next one later and later.
			ends++
			l.create(t)
			l.replaceDelayed(t)
			what, _ := l.end(t, l.random.IntN(3))
			t.Logf("step %d: %s", step, what)
		}
		if l.random.IntN(3) == 0 {
			l.settle(t)
		}
	}
	l.settle(t)
	l.finish(t)
	t.Run("Rights", func(t *testing.T) { s.testRights(t) })
}

// replaceDelayed deletes the pods of schedulers that the kubelet starts again later, by up to five minutes: the steps of thousands are so
// fast that both replicas would wait at the same time.
func (l *gangLab) replaceDelayed(t *testing.T) {
	t.Helper()
	pods := l.Client().CoreV1().Pods(agentNamespace)
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		for k := range pod.Status.ContainerStatuses {
			waiting := pod.Status.ContainerStatuses[k].State.Waiting
			if strings.HasPrefix(pod.Name, schedulerName) && waiting != nil && waiting.Reason == "CrashLoopBackOff" {
				if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
			}
		}
	}
}

// gangCluster is a cluster with schedulers as they ship, with the API nodes of gangs, and with objects from files.
func gangCluster(t *testing.T, schedulers int, manifests ...string) *schedulerTest {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, fmt.Appendf(nil, "scheduler: {enabled: true, replicas: %d, gangs: {reserveAfterSeconds: 3}}\n", schedulers), 0o600); err != nil {
		t.Fatal(err)
	}
	c := ownCluster(t, sandbox.Options{Nodes: 1, APINodes: gangNodes, Profile: profileName(), Helm: true, HelmValues: []string{values}, Manifests: manifests})
	if err := c.WriteAPIGPUNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, name := range c.APINodeNames() {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"rack-%d"}}}`, rackLabel, i/2)
		if _, err := c.Client().CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s := &schedulerTest{rig: newRig(c)}
	s.scale(t, schedulers)
	return s
}

// create creates a gang, all members but sometimes the last one at once.
func (l *gangLab) create(t *testing.T) {
	t.Helper()
	l.number++
	name := fmt.Sprintf("gang-%d", l.number)
	members, gpus := 1+l.random.IntN(6), []int{1, 2, 4, 8}[l.random.IntN(4)]
	g := &randomGang{least: 1 + l.random.IntN(members)}
	annotations := map[string]string{}
	switch l.random.IntN(4) {
	case 0:
		annotations["berth.dev/topology-required"] = "rack"
	case 1:
		annotations["berth.dev/topology-preferred"] = "rack"
	}
	l.gangs[name] = g
	for i := range members {
		pod := ofGang(podWithGPUs("", gpus), name, i, g.least, annotations)
		pod.Spec.SchedulerName = schedulerName
		onAPINodes(pod)
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
}

// onAPINodes makes a pod one for API nodes.
func onAPINodes(pod *corev1.Pod) {
	pod.Spec.NodeSelector = map[string]string{sandbox.APINodeLabel: sandbox.APINodeLabelValue}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.TaintNotValidated, Operator: corev1.TolerationOpExists}}
}

// members returns the pods of all gangs that are not being deleted, by gang.
func (l *gangLab) members(ctx context.Context) (map[string][]*corev1.Pod, error) {
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "berth.dev/pod-group"})
	if err != nil {
		return nil, err
	}
	all := map[string][]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			all[pod.Labels["berth.dev/pod-group"]] = append(all[pod.Labels["berth.dev/pod-group"]], pod)
		}
	}
	return all, nil
}

// any returns one of the gangs, or an empty name.
func (l *gangLab) any() string {
	names := slices.Sorted(maps.Keys(l.gangs))
	if len(names) == 0 {
		return ""
	}
	return names[l.random.IntN(len(names))]
}

func (l *gangLab) deleteGang(t *testing.T) {
	t.Helper()
	name := l.any()
	if name == "" {
		return
	}
	delete(l.gangs, name)
	if err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
		metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + name}); err != nil {
		t.Fatal(err)
	}
}

func (l *gangLab) deleteMember(t *testing.T) {
	t.Helper()
	all, err := l.members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pods := all[l.any()]
	if len(pods) == 0 {
		return
	}
	pod := pods[l.random.IntN(len(pods))]
	l.gangs[pod.Labels["berth.dev/pod-group"]].shrunk = true
	l.cleanUp(t, pod)
}

// cordon cordons a node, or uncordons it.
func (l *gangLab) cordon(t *testing.T) {
	t.Helper()
	names := l.APINodeNames()
	name := names[l.random.IntN(len(names))]
	node, err := l.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, !node.Spec.Unschedulable)
	if _, err := l.Client().CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// settle waits until no gang is bound in part, and checks that the pods of no node request more GPUs than it has.
func (l *gangLab) settle(t *testing.T) {
	t.Helper()
	waitUntil(t, settleLimit, "no gang is bound in part", func(ctx context.Context) error {
		all, err := l.members(ctx)
		if err != nil {
			return err
		}
		used, racks := map[string]int64{}, map[string]map[string]bool{}
		var partly []string
		for _, name := range slices.Sorted(maps.Keys(all)) {
			g, bound := l.gangs[name], 0
			racks[name] = map[string]bool{}
			for _, pod := range all[name] {
				if pod.Spec.NodeName == "" {
					continue
				}
				bound++
				gpus := pod.Spec.Containers[0].Resources.Limits[gpuResource]
				used[pod.Spec.NodeName] += gpus.Value()
				if pod.Annotations["berth.dev/topology-required"] != "" {
					racks[name][pod.Spec.NodeName[:len(pod.Spec.NodeName)-1]+fmt.Sprint((pod.Spec.NodeName[len(pod.Spec.NodeName)-1]-'0')/2)] = true
				}
			}
			if len(racks[name]) > 1 {
				t.Fatalf("gang %s requires one rack, and is in %v", name, slices.Sorted(maps.Keys(racks[name])))
			}
			if g != nil && !g.shrunk && bound > 0 && bound < g.least {
				partly = append(partly, fmt.Sprintf("%s has %d of at least %d", name, bound, g.least))
			}
		}
		for _, node := range slices.Sorted(maps.Keys(used)) {
			if used[node] > 8 {
				t.Fatalf("the pods of %s request %d GPUs, and it has 8", node, used[node])
			}
		}
		if len(partly) > 0 {
			return fmt.Errorf("%s", strings.Join(partly, ", "))
		}
		return nil
	})
}

// finish uncordons all nodes, and deletes gangs that run until all others have run: nothing waits without end. There may be hundreds of
// gangs for a few nodes: it fails when no gang starts within settleLimit and a minute.
func (l *gangLab) finish(t *testing.T) {
	t.Helper()
	for _, name := range l.APINodeNames() {
		if _, err := l.Client().CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for left := len(l.gangs); left > 0; {
		waitUntil(t, settleLimit+time.Minute, "a gang starts when others have ended", func(ctx context.Context) error {
			waiting, err := l.endThoseThatRun(ctx)
			if err == nil && len(l.gangs) == left {
				err = fmt.Errorf("%d wait: %s", len(waiting), strings.Join(waiting[:min(len(waiting), 10)], ", "))
			}
			return err
		})
		if left/100 != len(l.gangs)/100 {
			t.Logf("%d gangs wait", len(l.gangs))
		}
		left = len(l.gangs)
	}
	t.Logf("%d gangs were created", l.number)
}

// endThoseThatRun deletes the gangs that run, or that could never run, and returns those that wait.
func (l *gangLab) endThoseThatRun(ctx context.Context) (waiting []string, err error) {
	all, err := l.members(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(l.gangs)) {
		g, pods, bound := l.gangs[name], all[name], 0
		for _, pod := range pods {
			if pod.Spec.NodeName != "" {
				bound++
			}
		}
		if bound < g.least && len(pods) >= g.least && int64(g.least) <= mostMembers(pods) {
			waiting = append(waiting, fmt.Sprintf("%s has %d of at least %d", name, bound, g.least))
			continue
		}
		if err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
			metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + name}); err != nil {
			return nil, err
		}
		delete(l.gangs, name)
	}
	return waiting, nil
}

// mostMembers is how many members of a gang fit where they have to be: on all nodes, or on the two of a rack.
func mostMembers(pods []*corev1.Pod) int64 {
	if len(pods) == 0 {
		return 0
	}
	gpus := pods[0].Spec.Containers[0].Resources.Limits[gpuResource]
	if pods[0].Annotations["berth.dev/topology-required"] != "" {
		return 2 * (8 / gpus.Value())
	}
	return gangNodes * (8 / gpus.Value())
}
