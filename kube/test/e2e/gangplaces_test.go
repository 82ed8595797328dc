package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// rackLabel is the level of topology of the tests.
const rackLabel = "topology.kubernetes.io/rack"

// ofGang makes a pod the member of a gang with this index.
func ofGang(pod *corev1.Pod, gang string, index, least int, annotations map[string]string) *corev1.Pod {
	pod.Name = fmt.Sprintf("%s-%d", gang, index)
	pod.Labels = map[string]string{"berth.dev/pod-group": gang, "berth.dev/min-member": fmt.Sprint(least)}
	pod.Annotations = annotations
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	return pod
}

// gang returns the members of a gang that may run on all nodes of the lab.
func (l *placesLab) gang(name string, members, gpus int, annotations map[string]string) (pods []*corev1.Pod) {
	for i := range members {
		pods = append(pods, ofGang(l.pod("", gpus), name, i, members, annotations))
	}
	return pods
}

// TestGangPlaces checks on real kubelets where gangs go, and that their members get linked GPUs: the GPUs of all nodes are linked, and two
// nodes each are in a rack.
func TestGangPlaces(t *testing.T) {
	onOwnCluster(t, 4)
	l := newPlacesLab(t, map[string]string{"hollow-0": "h100x8", "hollow-1": "v100x8-hybrid-mesh", "hollow-2": "v100x8-hybrid-mesh", "hollow-3": "h100x8"})
	for i := range 4 {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"rack-%d"}}}`, rackLabel, i/2)
		if _, err := l.Client().CoreV1().Nodes().Patch(t.Context(), fmt.Sprintf("hollow-%d", i), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("OneRack", func(t *testing.T) { l.testGangInRack(t) })
	t.Run("FallsBack", func(t *testing.T) { l.testGangFallsBack(t) })
	t.Run("Competes", func(t *testing.T) { l.testGangsCompete(t) })
}

// checkLinked checks that the checkpoint of the kubelet has so many GPUs of a pod, and that NVLinks connect any two of them.
func (r *rig) checkLinked(t *testing.T, pod *corev1.Pod, want int) {
	t.Helper()
	shown := hardware(t, r.node.SimDir())
	var at []int
	for _, uuid := range r.assignment(t, pod).uuids {
		at = append(at, slices.IndexFunc(shown.GPUs, func(g sim.GPUDescription) bool { return g.UUID == uuid }))
	}
	if len(at) != want {
		t.Errorf("%s on %s has %d GPUs; want %d", pod.Name, pod.Spec.NodeName, len(at), want)
		return
	}
	for a := range at {
		for b := range a {
			if link := shown.Topology[at[a]][at[b]]; !strings.HasPrefix(link, "NV") {
				t.Errorf("%s on %s has GPUs %d and %d, which %s connects; want NVLinks", pod.Name, pod.Spec.NodeName, at[a], at[b], link)
			}
		}
	}
}

// testGangInRack: 4 members with 4 GPUs each fill one rack; members of consecutive index are on one node, and have linked GPUs.
func (l *placesLab) testGangInRack(t *testing.T) {
	var rig *rig
	for _, rig = range l.nodes {
		break
	}
	pods := rig.run(t, l.gang("in-rack", 4, 4, map[string]string{"berth.dev/topology-required": "rack"})...)
	racks := map[string]bool{}
	for _, pod := range pods {
		node := l.nodes[pod.Spec.NodeName]
		racks[pod.Spec.NodeName[:len("hollow-")]+fmt.Sprint((pod.Spec.NodeName[len("hollow-")]-'0')/2)] = true
		node.checkLinked(t, pod, 4)
	}
	if len(racks) != 1 || pods[0].Spec.NodeName != pods[1].Spec.NodeName || pods[2].Spec.NodeName != pods[3].Spec.NodeName || pods[0].Spec.NodeName == pods[2].Spec.NodeName {
		var nodes []string
		for _, pod := range pods {
			nodes = append(nodes, pod.Spec.NodeName)
		}
		t.Errorf("the members are on %v; want the first two on one node of a rack, and the others on the other one", nodes)
	}
}

// testGangFallsBack: with a GPU of each rack in use, a gang that requires a rack waits as a whole, and says why; one that only prefers it
// runs. When the GPUs are free again, the one that waits runs.
func (l *placesLab) testGangFallsBack(t *testing.T) {
	var single []*corev1.Pod
	for _, node := range []string{"hollow-0", "hollow-2"} {
		pod := l.pod("single-"+node, 1)
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		single = append(single, pod)
	}
	rig := l.nodes["hollow-0"]
	rig.run(t, single...)
	required := l.gang("required", 4, 4, map[string]string{"berth.dev/topology-required": "rack"})
	t.Cleanup(func() { rig.cleanUp(t, required...) })
	began := time.Now()
	for _, pod := range required {
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	const want = "berth: gang default/required waits as a whole: 4 members have to fit in one rack, and at most 3 do"
	waitSaysWhy(t, l.Client(), want, required...)
	t.Logf("refused after %v", time.Since(began).Round(time.Millisecond))
	preferred := rig.run(t, l.gang("preferred", 4, 4, map[string]string{"berth.dev/topology-preferred": "rack"})...)
	nodes := map[string]bool{}
	for _, pod := range preferred {
		nodes[pod.Spec.NodeName] = true
	}
	if len(nodes) < 2 {
		t.Errorf("the members are on %v", slices.Sorted(maps.Keys(nodes)))
	}
	rig.cleanUp(t, preferred...)
	rig.cleanUp(t, single...)
	for _, pod := range required {
		if _, err := l.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
}

// testGangsCompete: of two gangs that do not both fit, one runs and the other holds nothing: a pod runs on a GPU that is left. When the
// first one ends, the other runs.
func (l *placesLab) testGangsCompete(t *testing.T) {
	rig := l.nodes["hollow-0"]
	gangs := map[string][]*corev1.Pod{"first": l.gang("first", 5, 4, nil), "second": l.gang("second", 5, 4, nil)}
	for i := range 5 {
		for _, name := range []string{"first", "second"} {
			pod := gangs[name][i]
			t.Cleanup(func() { rig.cleanUp(t, pod) })
			if _, err := l.CreatePod(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	running := func(ctx context.Context, name string) (int, error) {
		count := 0
		for _, pod := range gangs[name] {
			got, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return 0, err
			}
			if got.Status.Phase == corev1.PodRunning {
				count++
			}
		}
		return count, nil
	}
	winner, loser := "", ""
	waitUntil(t, time.Minute, "one gang runs", func(ctx context.Context) error {
		first, err := running(ctx, "first")
		if err != nil {
			return err
		}
		second, err := running(ctx, "second")
		switch {
		case err != nil:
			return err
		case first == 5 && second == 0:
			winner, loser = "first", "second"
		case second == 5 && first == 0:
			winner, loser = "second", "first"
		default:
			return fmt.Errorf("%d members of the first run, %d of the second", first, second)
		}
		return nil
	})
	rig.run(t, l.pod("beside", 4))
	rig.cleanUp(t, gangs[winner]...)
	for _, pod := range gangs[loser] {
		if _, err := l.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
}

// waitSaysWhy waits until the conditions of pods say why they wait.
func waitSaysWhy(t *testing.T, client kubernetes.Interface, want string, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		waitUntil(t, 20*time.Second, "member "+pod.Name+" says why it waits", func(ctx context.Context) error {
			got, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range got.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, want) {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %+v; want %q", got.Status.Conditions, want)
		})
	}
}
