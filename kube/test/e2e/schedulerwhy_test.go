package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// productLabel is the label with the model of a node's GPUs.
const productLabel = "nvidia.com/gpu.product"

// testWhy asks berth why about pods that wait on real kubelets, applies each change that it proposes, and the pod runs.
func (l *placesLab) testWhy(t *testing.T) {
	on := func(pod *corev1.Pod, nodes ...string) *corev1.Pod {
		pod.Spec.Affinity = nodesOnly(nodes...)
		return pod
	}
	changed := func(name string, change func(*corev1.PodSpec)) *corev1.Pod {
		pod := l.pod(name, 1)
		change(&pod.Spec)
		return pod
	}
	request := func(name corev1.ResourceName, amount string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(amount)}
		}
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
			prepare: func(t *testing.T) {
				t.Cleanup(func() { l.cordon(t, "hollow-0", false) })
				l.cordon(t, "hollow-0", true)
			},
			pod: on(l.pod("cordoned", 1), "hollow-0"), code: "NodeCordoned", act: "Uncordon",
		},
		"Selector": {pod: changed("selects-rack", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"example.com/rack": "r9"} }),
			code: "NodeSelector", act: "SelectLess"},
		"Model": {pod: changed("wants-b200", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{productLabel: "NVIDIA-B200"} }),
			code: "WrongModel", act: "AcceptModel"},
		"CPU":    {pod: changed("wants-cpu", request(corev1.ResourceCPU, "5000")), code: "TooLittleCPU", act: "RequestCPU"},
		"Memory": {pod: changed("wants-memory", request(corev1.ResourceMemory, "900Ti")), code: "TooLittleMemory", act: "RequestMemory"},
		"Misspelt": {pod: changed("misspelt", func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpus": resource.MustParse("1")}
		}), code: "NoResource", act: "RequestResource"},
		"Unhealthy": {prepare: func(t *testing.T) { l.breakGPUs(t, "hollow-0") }, pod: on(l.pod("needs-a-repair", 1), "hollow-0"), code: "GPUsUnhealthy", act: "RepairGPU"},
	}
	applied, others := 0, 0
	for name, test := range tests {
		// situation makes the situation, and asks.
		situation := func(t *testing.T) (*corev1.Pod, v1alpha1.Why) {
			if test.prepare != nil {
				test.prepare(t)
			}
			pod, err := l.CreatePod(t.Context(), test.pod)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.remove(t, pod) })
			l.waitUnschedulable(t, pod, test.code != "NoResource")
			return pod, l.why(t, pod.Name)
		}
		t.Run(name, func(t *testing.T) {
			var first v1alpha1.Why
			t.Run("Why", func(t *testing.T) {
				_, first = situation(t)
				known := slices.ContainsFunc(first.Changes, func(c v1alpha1.WhyChange) bool { return len(c.Acts) == 1 && c.Acts[0].Kind == test.act })
				if first.Code != test.code || !known {
					t.Fatalf("berth why says %s (%s), changes %+v; want %s, and %s as a change", first.Code, first.Sentence, first.Changes, test.code, test.act)
				}
			})
			for i := range first.Changes {
				if !slices.ContainsFunc(first.Changes[i].Acts, notHere) {
					applied++
					t.Run(fmt.Sprintf("Change%d", i+1), func(t *testing.T) { l.testChange(t, i, situation) })
				} else {
					others++
				}
			}
		})
	}
	t.Logf("%d proposed changes were applied; %d are about a new node, which this cluster cannot get", applied, others)
}

// notHere tells whether an act cannot be done in this cluster.
func notHere(a v1alpha1.WhyAct) bool { return a.Kind == "AddNode" || a.Kind == "NewNode" }

// testChange applies one of the changes that are proposed, and the pod runs.
func (l *placesLab) testChange(t *testing.T, i int, situation func(*testing.T) (*corev1.Pod, v1alpha1.Why)) {
	pod, why := situation(t)
	if i >= len(why.Changes) {
		t.Fatalf("berth why proposes %d changes now: %+v", len(why.Changes), why.Changes)
	}
	change := why.Changes[i]
	pod = l.apply(t, pod, change.Acts)
	if _, err := l.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
		t.Errorf("with the change %q: %v", change.Message, err)
	}
	t.Logf("it runs with the change %q", change.Message)
}

// waitUnschedulable waits until the scheduler has tried the pod, and says why: of a pod that requests GPUs of some node in the sentence of
// the plugin.
func (l *placesLab) waitUnschedulable(t *testing.T, pod *corev1.Pod, sentence bool) {
	t.Helper()
	last := errors.New("it was not read")
	waitUntil(t, 30*time.Second, "the pod is unschedulable", func(ctx context.Context) error {
		got, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return errors.Join(err, last)
		}
		for _, c := range got.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "berth: ") == sentence {
				t.Logf("the condition says: %s", c.Message)
				return nil
			}
		}
		last = fmt.Errorf("it is on node %q, and its conditions are %v", got.Spec.NodeName, got.Status.Conditions)
		return last
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
func (l *placesLab) apply(t *testing.T, pod *corev1.Pod, acts []v1alpha1.WhyAct) *corev1.Pod {
	t.Helper()
	next := pod.DeepCopy()
	next.ObjectMeta = metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}
	next.Spec.NodeName, next.Status = "", corev1.PodStatus{}
	other := false
	for _, act := range acts {
		switch act.Kind {
		case "EndPod":
			namespace, name, _ := strings.Cut(act.Pod, "/")
			if err := l.DeletePodAndWait(timeout(t, time.Minute), namespace, name, 0); err != nil {
				t.Fatal(err)
			}
		case "Uncordon":
			l.cordon(t, act.Node, false)
		case "RepairGPU":
			l.repair(t, act.Node)
		default:
			changePod(t, &next.Spec, act)
			other = true
		}
	}
	if !other {
		return pod
	}
	l.remove(t, pod)
	made, err := l.CreatePod(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// changePod changes what a pod requests or accepts.
func changePod(t *testing.T, spec *corev1.PodSpec, act v1alpha1.WhyAct) {
	t.Helper()
	requests := &spec.Containers[0].Resources
	switch act.Kind {
	case "RequestGPUs":
		requestGPUs(&spec.Containers[0], int(act.Count))
		requests.Requests = nil
	case "Tolerate":
		key, _, _ := strings.Cut(act.Key, "=")
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	case "SelectLess":
		if label, found := strings.CutPrefix(act.Key, "the label "); found {
			key, _, _ := strings.Cut(label, "=")
			delete(spec.NodeSelector, key)
		} else {
			spec.Affinity = nil
		}
	case "AcceptModel":
		if spec.NodeSelector[productLabel] = act.Key; act.Key == "" {
			delete(spec.NodeSelector, productLabel)
		}
	case "RequestCPU":
		requests.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(act.Count, resource.DecimalSI)
	case "RequestMemory":
		requests.Requests[corev1.ResourceMemory] = *resource.NewQuantity(act.Count<<20, resource.BinarySI)
	case "RequestResource":
		requests.Limits, requests.Requests = corev1.ResourceList{corev1.ResourceName(act.Key): resource.MustParse("1")}, nil
	default:
		t.Fatalf("berth why proposes %+v, which the test cannot do", act)
	}
}

// breakGPUs makes all GPUs of a node unusable, and waits until the API server has that.
func (l *placesLab) breakGPUs(t *testing.T, node string) {
	t.Helper()
	r := l.nodes[node]
	machine, err := sim.Open(r.node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := machine.Clear(sim.ClearAll); err != nil {
			t.Error(err)
		}
	})
	for _, g := range hardware(t, r.node.SimDir()).GPUs {
		if err := machine.Inject(sim.Fault{GPU: g.UUID, XID: 79, Recovery: "node-reboot"}); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, 30*time.Second, "the GPUNode and the Node have no usable GPU", func(ctx context.Context) error {
		object, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		of, err := l.Client().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if gpus := of.Status.Allocatable[gpuResource]; object.Status.Summary.Free > 0 || gpus.Value() > 0 {
			return fmt.Errorf("%d and %d are", object.Status.Summary.Free, gpus.Value())
		}
		return nil
	})
}

// repair ends all faults of a node.
func (l *placesLab) repair(t *testing.T, node string) {
	t.Helper()
	r := l.nodes[node]
	machine, err := sim.Open(r.node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.Clear(sim.ClearAll); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, len(hardware(t, r.node.SimDir()).GPUs))
}

// cordon marks a node as one that gets no pods, or ends that, and waits until the controllers have seen it: the scheduler, which watches
// the Nodes as they do, can be late by a moment.
func (l *placesLab) cordon(t *testing.T, node string, on bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	nodes := l.Client().CoreV1().Nodes()
	if _, err := nodes.Patch(ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := poll(ctx, "the taint of "+node+" follows", func() error {
		got, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(got.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable }) != on {
			err = fmt.Errorf("its taints are %v", got.Spec.Taints)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
