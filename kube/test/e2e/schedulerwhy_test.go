package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// testWhy asks berth why about pods that wait on real kubelets, applies a change that it proposes, and the pod runs.
func (l *placesLab) testWhy(t *testing.T) {
	on := func(pod *corev1.Pod, nodes ...string) *corev1.Pod {
		pod.Spec.Affinity = nodesOnly(nodes...)
		return pod
	}
	tests := map[string]struct {
		prepare func(t *testing.T)
		pod     *corev1.Pod
		code    string // of the dominant reason
		act     string // of the change that is applied
	}{
		"TooFewFree": {
			prepare: func(t *testing.T) { startPod(t, l.Cluster, on(l.pod("holder", 2), "hollow-0")) },
			pod:     on(l.pod("whole-node", 4), "hollow-0"), code: "GPUsInUse", act: "EndPod",
		},
		"TooMany": {pod: l.pod("too-many", 9), code: "TooFewGPUs", act: "RequestGPUs"},
		"Taint": {pod: func() *corev1.Pod {
			pod := on(l.pod("not-tolerated", 1), "hollow-0")
			pod.Spec.Tolerations = nil
			return pod
		}(), code: "Taint", act: "Tolerate"},
		"Cordoned": {
			prepare: func(t *testing.T) { l.cordon(t, "hollow-0", true) },
			pod:     on(l.pod("cordoned", 1), "hollow-0"), code: "NodeCordoned", act: "Uncordon",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.prepare != nil {
				test.prepare(t)
			}
			pod, err := l.CreatePod(t.Context(), test.pod)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.remove(t, pod) })
			l.waitUnschedulable(t, pod)
			why := l.why(t, pod.Name)
			at := slices.IndexFunc(why.Changes, func(c v1alpha1.WhyChange) bool { return len(c.Acts) == 1 && c.Acts[0].Kind == test.act })
			if why.Code != test.code || at < 0 {
				t.Fatalf("berth why says %s (%s), changes %+v; want %s, and %s as a change", why.Code, why.Sentence, why.Changes, test.code, test.act)
			}
			pod = l.apply(t, pod, why.Changes[at].Acts[0])
			if _, err := l.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
				t.Errorf("with the change %q: %v", why.Changes[at].Message, err)
			}
		})
	}
}

// waitUnschedulable waits until the scheduler has tried the pod, and says why in the sentence of the plugin.
func (l *placesLab) waitUnschedulable(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the pod is unschedulable", func(ctx context.Context) error {
		got, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "berth: ") {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", got.Status.Conditions)
	})
}

func (l *placesLab) why(t *testing.T, pod string) v1alpha1.Why {
	t.Helper()
	result := l.nodes["hollow-0"].berth(t, "why", pod, "--kubeconfig", l.KubeconfigPath(), "-o", "json")
	var why v1alpha1.Why
	if err := json.Unmarshal([]byte(result.out), &why); err != nil || result.code != 0 {
		t.Fatalf("berth why: exit code %d, %v\n%s%s", result.code, err, result.out, result.err)
	}
	return why
}

// apply does what a change of berth why says, and returns the pod, which is another one where its request has to change.
func (l *placesLab) apply(t *testing.T, pod *corev1.Pod, act v1alpha1.WhyAct) *corev1.Pod {
	t.Helper()
	switch act.Kind {
	case "EndPod":
		namespace, name, _ := strings.Cut(act.Pod, "/")
		if err := l.DeletePodAndWait(timeout(t, time.Minute), namespace, name, 0); err != nil {
			t.Fatal(err)
		}
		return pod
	case "Uncordon":
		l.cordon(t, act.Node, false)
		return pod
	}
	l.remove(t, pod)
	next := pod.DeepCopy()
	next.ObjectMeta = metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}
	next.Spec.NodeName, next.Status = "", corev1.PodStatus{}
	switch act.Kind {
	case "RequestGPUs":
		requestGPUs(&next.Spec.Containers[0], int(act.Count))
		next.Spec.Containers[0].Resources.Requests = nil
	case "Tolerate":
		key, _, _ := strings.Cut(act.Key, "=")
		next.Spec.Tolerations = append(next.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	default:
		t.Fatalf("berth why proposes %+v, which the test cannot do", act)
	}
	made, err := l.CreatePod(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// cordon marks a node as one that gets no pods, or ends that.
func (l *placesLab) cordon(t *testing.T, node string, on bool) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on)
	if _, err := l.Client().CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
