package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	// fullNodePods is how many pods a node of TestOperateFullNodes takes.
	fullNodePods = 6
	// endFirstGoal is the time without a healthy GPU on a node that takes no pod beside the old agent; the test fails above endFirstLimit.
	endFirstGoal  = 5 * time.Second
	endFirstLimit = 3 * endFirstGoal
	// upgradedVolume is a volume of the new agents. A node without its folder cannot run them.
	upgradedVolume = "upgraded"
	upgradedFolder = "upgraded"
)

// fullNodes are three nodes whose CPU and memory are requested to the last unit. The second one cannot run the new agent, and the third one
// takes no further pod.
type fullNodes struct {
	*installed
	ready, broken, packed sandbox.Node
}

// TestOperateFullNodes upgrades the agent on nodes that have nothing left for a second one: no pod of a user ends, the GPUs stay healthy,
// and a node whose new agent cannot start delays no other.
func TestOperateFullNodes(t *testing.T) {
	onOwnCluster(t, 3)
	c := ownCluster(t, sandbox.Options{Nodes: 3, Profile: profileName(), NoAgent: true, KubeletConfig: map[string]any{"maxPods": fullNodePods}})
	f := &fullNodes{&installed{Cluster: c, gpus: nodeGPUs}, c.Nodes()[0], c.Nodes()[1], c.Nodes()[2]}
	values := f.merged(map[string]any{"gate": map[string]any{"mode": "disabled"}})
	if _, err := f.Helm(timeout(t, time.Minute), values, f.chart("install", "--create-namespace")...); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.Nodes() {
		f.waitFull(t, node)
	}
	users := f.fill(t)
	samplers := map[string]*sampler{}
	for _, node := range c.Nodes() {
		samplers[node.Name()] = (&rig{Cluster: c, node: node}).sample(t)
	}

	for _, node := range []sandbox.Node{f.ready, f.packed} {
		if err := os.Mkdir(filepath.Join(node.KubeletDir(), upgradedFolder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	agent := values["agent"].(map[string]any)
	agent["extraVolumes"] = append(agent["extraVolumes"].([]any), map[string]any{"name": upgradedVolume,
		"hostPath": map[string]any{"path": filepath.Join("/var/lib/kubelet", upgradedFolder), "type": corev1.HostPathDirectory}})
	agent["extraVolumeMounts"] = append(agent["extraVolumeMounts"].([]any), map[string]any{"name": upgradedVolume, "mountPath": "/upgraded"})
	began := time.Now()
	if _, err := f.Helm(timeout(t, time.Minute), values, f.chart("upgrade")...); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the agents are upgraded where they can be", func(ctx context.Context) error {
		return errors.Join(f.checkUsers(ctx, users), f.upgraded(ctx, f.ready, true), f.upgraded(ctx, f.packed, true), f.upgraded(ctx, f.broken, false))
	})
	took := time.Since(began)
	if err := f.checkUsers(t.Context(), users); err != nil {
		t.Error(err)
	}
	for _, node := range c.Nodes() {
		gap, pause, lowest := gaps(samplers[node.Name()].stop())
		t.Logf("%s: the lowest number of healthy GPUs was %d, fewer than all for %s, samples at most %s apart", node.Name(), lowest, ms(gap), ms(pause))
		if node.Name() != f.packed.Name() && lowest != nodeGPUs {
			t.Errorf("%s had %d healthy GPUs, want never fewer than %d", node.Name(), lowest, nodeGPUs)
		}
		if gap > endFirstLimit {
			t.Errorf("%s had fewer than all GPUs for %s, want at most %s (goal %s)", node.Name(), ms(gap), endFirstLimit, endFirstGoal)
		}
	}
	t.Logf("the agents were upgraded %s after the command of the upgrade began", ms(took))
}

// fill requests what is left of each node's CPU and memory with a pod of a user that holds GPUs, and fills the packed one with pods. It
// returns the users' pods.
func (f *fullNodes) fill(t *testing.T) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for _, node := range f.Nodes() {
		free, places := f.free(t, node)
		pod := podWithGPUs("training-"+node.Name(), 2)
		pod.Spec.Containers[0].Resources.Requests = free
		pods = append(pods, on(node, pod))
		for i := 1; node.Name() == f.packed.Name() && i < places; i++ {
			pods = append(pods, on(node, workloadPod(fmt.Sprintf("small-%d", i), "sleep")))
		}
	}
	for _, pod := range pods {
		if _, err := f.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	for i, pod := range pods {
		running, err := f.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning)
		if err != nil {
			t.Fatal(err)
		}
		pods[i] = running
	}
	return pods
}

// on lets a pod run on one node only.
func on(node sandbox.Node, pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name()}
	return pod
}

// free returns the CPU and memory of a node that no pod requests, and how many more pods it takes.
func (f *fullNodes) free(t *testing.T, node sandbox.Node) (corev1.ResourceList, int) {
	t.Helper()
	object, err := f.Client().CoreV1().Nodes().Get(t.Context(), node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := f.Client().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name()})
	if err != nil {
		t.Fatal(err)
	}
	free := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		left := object.Status.Allocatable[name].DeepCopy()
		for i := range pods.Items {
			left.Sub(requested(&pods.Items[i], name))
		}
		free[name] = left
	}
	return free, int(object.Status.Allocatable.Pods().Value()) - len(pods.Items)
}

// requested returns what the containers of a pod request of a resource.
func requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	var sum resource.Quantity
	for i := range pod.Spec.Containers {
		sum.Add(pod.Spec.Containers[i].Resources.Requests[name])
	}
	return sum
}

// checkUsers returns an error if a pod of a user is not the same any more or does not run.
func (f *fullNodes) checkUsers(ctx context.Context, users []*corev1.Pod) error {
	var errs []error
	for _, user := range users {
		now, err := f.Client().CoreV1().Pods(user.Namespace).Get(ctx, user.Name, metav1.GetOptions{})
		if err == nil && (now.UID != user.UID || now.DeletionTimestamp != nil || now.Status.Phase != corev1.PodRunning || restarts(now) > 0) {
			err = fmt.Errorf("pod %s of a user was ended or restarted: it is %s, deleted at %v, %+v", user.Name, now.Status.Phase, now.DeletionTimestamp, now.Status.Conditions)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// upgraded returns an error unless the agent of a node is a new one that is ready and alone; with whether false unless the old one is ready
// beside a new one that is not.
func (f *fullNodes) upgraded(ctx context.Context, node sandbox.Node, whether bool) error {
	pods, err := f.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: agentSelector, FieldSelector: "spec.nodeName=" + node.Name()})
	if err != nil {
		return err
	}
	var old, now []bool
	for i := range pods.Items {
		pod := &pods.Items[i]
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
		if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == upgradedVolume }) {
			now = append(now, ready)
		} else {
			old = append(old, ready)
		}
	}
	if whether && len(old) == 0 && slices.Equal(now, []bool{true}) || !whether && slices.Equal(old, []bool{true}) && slices.Equal(now, []bool{false}) {
		return nil
	}
	return fmt.Errorf("%s has old agents that are ready: %v, and new ones: %v", node.Name(), old, now)
}
