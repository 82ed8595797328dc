package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// whyLab is a cluster of API nodes with 8 GPUs each, two in a rack and four in a zone.
type whyLab struct {
	*rig
	kubectl string
	// number is how many objects were made.
	number int
}

func newWhyLab(t *testing.T) *whyLab {
	config := strings.Replace(placesConfig, "{name: BerthBinding}]", "{name: BerthBinding}, {name: BerthPodGroups, weight: 2000000}]", 1)
	c := ownCluster(t, sandbox.Options{Hollow: 1, NodeProfiles: map[string]string{"hollow-0": "t4x4"}, APINodes: gangNodes,
		Scheduler: "berth-scheduler", SchedulerConfig: schedulerConfig(t, config)})
	l := &whyLab{rig: newRig(c), kubectl: filepath.Join(t.TempDir(), "kubectl")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, l.kubectl); err != nil {
		t.Fatal(err)
	}
	l.servePodGroups(t)
	for i := range gangNodes {
		// Nothing validates these nodes.
		labels := fmt.Sprintf(`{%q:"rack-%d",%q:"zone-%d"}`, rackLabel, i/2, corev1.LabelTopologyZone, i/4)
		l.patch(t, i, `{"metadata":{"labels":`+labels+`},"spec":{"taints":null}}`)
	}
	return l
}

// patch changes an API node.
func (l *whyLab) patch(t *testing.T, index int, patch string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	name, nodes := l.APINodeNames()[index], l.Client().CoreV1().Nodes()
	if _, err := nodes.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod returns a pod with GPUs for API nodes.
func (l *whyLab) pod(gpus int) *corev1.Pod {
	pod := podWithGPUs("", gpus)
	pod.Spec.NodeSelector = map[string]string{sandbox.APINodeLabel: sandbox.APINodeLabelValue}
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	return pod
}

// busy runs a pod with some of the GPUs of an API node.
func (l *whyLab) busy(t *testing.T, index, gpus int, change func(*corev1.Pod)) {
	t.Helper()
	pod := l.pod(gpus)
	l.number++
	pod.Name, pod.Spec.NodeName = fmt.Sprintf("busy-%d", l.number), l.APINodeNames()[index]
	if change != nil {
		change(pod)
	}
	l.run(t, pod)
}

// member creates a member of a gang, with 8 GPUs if nothing changes that. No two pods have a name in common: kwok ends pods by their names,
// and can be late.
func (l *whyLab) member(t *testing.T, gang string, least int, change func(*corev1.Pod)) {
	t.Helper()
	l.number++
	pod := ofGang(l.pod(8), gang, l.number, least, map[string]string{})
	if change != nil {
		change(pod)
	}
	if _, err := l.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// servePodGroups has the API server serve the PodGroups of scheduling-plugins, which the scheduler may read. It asks for them every 15 s.
func (l *whyLab) servePodGroups(t *testing.T) {
	t.Helper()
	of, _ := gangplan.SchedulerPlugins.Resource()
	objects := make([]*unstructured.Unstructured, 3)
	for i, text := range []string{
		fmt.Sprintf(podGroupDefinition, of.Group, of.Version),
		fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"pod-groups"},
"rules":[{"apiGroups":[%q],"resources":[%q],"verbs":["list","watch"]}]}`, of.Group, of.Resource),
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"pod-groups"},
"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"pod-groups"},
"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:kube-scheduler"}]}`,
	} {
		objects[i] = &unstructured.Unstructured{}
		if err := objects[i].UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.ApplyObjects(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}

// podGroup creates the PodGroup of scheduling-plugins with the name of the gang.
func (l *whyLab) podGroup(t *testing.T, least int64) {
	t.Helper()
	client, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	of, _ := gangplan.SchedulerPlugins.Resource()
	groups, group := client.Resource(of).Namespace(metav1.NamespaceDefault), podGroup(of, least)
	group.SetName("train")
	t.Cleanup(func() {
		if err := groups.Delete(context.WithoutCancel(t.Context()), "train", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	waitUntil(t, 20*time.Second, "the API server serves PodGroups", func(ctx context.Context) error {
		_, err := groups.Create(ctx, group, metav1.CreateOptions{})
		return err
	})
}

// members returns the members of the gang that is asked about.
func (l *whyLab) members(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := l.membersOf(t.Context(), "train")
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// gang runs a gang.
func (l *whyLab) gang(t *testing.T, name string, members, least int, change func(*corev1.Pod)) {
	t.Helper()
	for range members {
		l.member(t, name, least, change)
	}
	l.waitPlaced(t, name, least)
}

// membersOf returns the members of a gang.
func (l *whyLab) membersOf(ctx context.Context, gang string) ([]corev1.Pod, error) {
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !strings.HasPrefix(pod.Name, gang+"-") }), nil
}

// said returns what the condition of a pod without a node says, empty for nothing.
func said(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

// waitRefused waits until the scheduler has said of each member without a node why it has none: each change has to bring the gang back.
func (l *whyLab) waitRefused(t *testing.T) {
	t.Helper()
	waitUntil(t, 20*time.Second, "the scheduler refuses the gang", func(ctx context.Context) error {
		pods, err := l.membersOf(ctx, "train")
		for i := range pods {
			if pods[i].Spec.NodeName == "" && !strings.Contains(said(&pods[i]), "gang default/train ") {
				return fmt.Errorf("the condition of %s says %q", pods[i].Name, said(&pods[i]))
			}
		}
		return err
	})
}

// waitPlaced waits until so many members of a gang have nodes, and returns the nodes.
func (l *whyLab) waitPlaced(t *testing.T, gang string, want int) (nodes []string) {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("%d members of gang %s have nodes", want, gang), func(ctx context.Context) error {
		pods, err := l.membersOf(ctx, gang)
		if err != nil {
			return err
		}
		message := ""
		nodes = nil
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				nodes = append(nodes, pods[i].Spec.NodeName)
			}
			message = cmp.Or(message, said(&pods[i]))
		}
		if len(nodes) < want {
			return fmt.Errorf("%d have; another one says: %s", len(nodes), message)
		}
		return nil
	})
	return nodes
}

// addNodes adds nodes like an API node.
func (l *whyLab) addNodes(t *testing.T, act *v1alpha1.WhyAct) {
	t.Helper()
	like, err := l.Client().CoreV1().Nodes().Get(t.Context(), act.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	gpuNodes := client.Resource(v1alpha1.GPUNodes())
	object, err := gpuNodes.Get(t.Context(), act.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range max(1, act.Count) {
		l.number++
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("new-%d", l.number), Labels: like.Labels, Annotations: like.Annotations},
			Spec: corev1.NodeSpec{Taints: slices.DeleteFunc(slices.Clone(like.Spec.Taints), func(t corev1.Taint) bool {
				return strings.HasPrefix(t.Key, "node.kubernetes.io/")
			})},
			Status: corev1.NodeStatus{Capacity: like.Status.Capacity, Allocatable: like.Status.Allocatable},
		}
		node.Labels[corev1.LabelHostname] = node.Name
		made := &unstructured.Unstructured{Object: map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(),
			"metadata": map[string]any{"name": node.Name}, "status": object.Object["status"]}}
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if err := l.Client().CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if err := gpuNodes.Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		if _, err := gpuNodes.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// restore deletes all pods, and removes what a situation has changed of the nodes.
func (l *whyLab) restore(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	pods := l.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if err := poll(ctx, "all pods are gone", func() error {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	for i := range gangNodes {
		l.patch(t, i, `{"metadata":{"labels":{"pool":null}},"spec":{"taints":null,"unschedulable":null}}`)
	}
}
