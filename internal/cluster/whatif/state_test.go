package whatif

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestIdleReasons: a node of 4 GPUs with 8 cores, and a pod that waits; what is changed decides why the GPUs are idle.
func TestIdleReasons(t *testing.T) {
	taint := func(key, value string) func(*Objects) {
		return func(o *Objects) {
			o.Nodes[0].Spec.Taints = []corev1.Taint{{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	tests := map[string]struct {
		gpus   int64
		change func(*Objects)
		want   Reason
		text   string
	}{
		"fits":      {1, func(*Objects) {}, Fits, "a pod of 4 CPU, 1024 MiB, 1 nvidia.com/gpu would fit"},
		"too few":   {8, func(*Objects) {}, TooFew, "it has 4 nvidia.com/gpu, the pod requests 8"},
		"CPU":       {1, func(o *Objects) { o.Nodes[0].Status.Allocatable[corev1.ResourceCPU] = quantity(2) }, CPUOrMemory, "2 cores are free, the pod requests 4"},
		"no pod":    {1, func(o *Objects) { o.Pods = nil }, NotRequested, "no pod requests nvidia.com/gpu"},
		"agent":     {1, func(o *Objects) { delete(o.Nodes[0].Status.Allocatable, "nvidia.com/gpu") }, AgentDown, "the Node offers no nvidia.com/gpu"},
		"cordoned":  {1, func(o *Objects) { o.Nodes[0].Spec.Unschedulable = true }, Cordoned, "the Node is cordoned"},
		"not ready": {1, taint(corev1.TaintNodeNotReady, ""), NotReady, "the Node has the taint node.kubernetes.io/not-ready"},
		"tainted":   {1, taint("team", "a"), Excluded, "the pods that request nvidia.com/gpu select other nodes or models, or do not tolerate the taints"},
		"selector": {1, func(o *Objects) { o.Pods[0].Spec.NodeSelector = map[string]string{"a": "b"} }, Excluded,
			"the pods that request nvidia.com/gpu select other nodes or models, or do not tolerate the taints"},
		"draining": {1, func(o *Objects) {
			for i := range o.GPUNodes[0].Status.Devices {
				o.GPUNodes[0].Status.Devices[i].Offered = &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu", Draining: "an upgrade"}
			}
		}, Draining, "GPUs are draining"},
		"unhealthy": {1, func(o *Objects) {
			for i := range o.GPUNodes[0].Status.Devices {
				o.GPUNodes[0].Status.Devices[i].Health.State = "NeedsReset"
			}
		}, Unhealthy, "GPUs are unhealthy or gone"},
		"held": {1, func(o *Objects) {
			o.GPUNodes[0].Status.Gate = &v1alpha1.GateStatus{State: v1alpha1.GateHeld, Tainted: true}
		}, NotValidated, "the node is Held, not Validated"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := &Objects{}
			addNode(o, "a", 8, 64, 4, 1, nil)
			addPod(o, 4000, 1024, map[string]int64{"nvidia.com/gpu": test.gpus})
			test.change(o)
			got := ask(t, o, Options{}).Now.Idle
			if len(got) != 1 || got[0] != (Idle{test.want, 4, 1, "a", test.text}) {
				t.Errorf("%+v; want %s: %s", got, test.want, test.text)
			}
		})
	}
}

// TestConstraints: on which of two nodes a pod may run.
func TestConstraints(t *testing.T) {
	affinity := func(term corev1.NodeSelectorTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
		}
	}
	zone := func(operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: operator, Values: values}}}
	}
	cordon := func(nodes []corev1.Node) { nodes[0].Spec.Unschedulable = true }
	tainted := func(nodes []corev1.Node) {
		nodes[1].Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}, {Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	tests := map[string]struct {
		pod   func(*corev1.Pod)
		nodes func([]corev1.Node)
		want  []bool
	}{
		"nothing":      {func(*corev1.Pod) {}, nil, []bool{true, true}},
		"selector":     {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }, nil, []bool{false, true}},
		"affinity":     {affinity(zone(corev1.NodeSelectorOpNotIn, "b")), nil, []bool{true, false}},
		"no such term": {affinity(zone("Around", "b")), nil, []bool{false, false}},
		"cordoned":     {func(*corev1.Pod) {}, cordon, []bool{false, true}},
		"tainted":      {func(*corev1.Pod) {}, tainted, []bool{true, false}},
		"tolerates": {func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
		}, tainted, []bool{true, true}},
		"tolerates less": {func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Value: "w"}} }, tainted, []bool{true, false}},
		"name": {affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}),
			nil, []bool{true, false}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := &Objects{}
			addNode(o, "a", 8, 64, 1, 1, nil)
			addNode(o, "b", 8, 64, 1, 1, nil)
			o.Nodes[0].Labels["zone"], o.Nodes[1].Labels["zone"] = "a", "b"
			test.pod(addPod(o, 1000, 1024, nil))
			if test.nodes != nil {
				test.nodes(o.Nodes)
			}
			c, err := newCluster(o)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.groups[0].constraint.nodes; !slices.Equal(got, test.want) {
				t.Errorf("allowed on %v; want %v", got, test.want)
			}
		})
	}
}

// TestStaying: pods of DaemonSets and with claims keep what they have, and what is theirs is on added nodes, too.
func TestStaying(t *testing.T) {
	o := &Objects{}
	addNode(o, "a", 8, 64, 2, 1, nil)
	daemon := addPod(o, 6000, 1024, nil)
	daemon.Spec.NodeName = "a"
	controller := true
	daemon.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: &controller}}
	claim := addPod(o, 1000, 1024, nil)
	claim.Spec.NodeName, claim.Spec.ResourceClaims = "a", []corev1.PodResourceClaim{{Name: "gpu"}}
	o.GPUNodes[0].Status.Devices[0].Holders = []v1alpha1.Holder{{Kind: "Claim", ID: "c", Pods: []v1alpha1.HolderPod{{UID: string(claim.UID)}}}}
	for range 3 {
		addPod(o, 2000, 1024, map[string]int64{"nvidia.com/gpu": 1})
	}
	layout, err := ParseLayout("1g.10gb=7@a")
	if err != nil {
		t.Fatal(err)
	}
	// Beside 7 of the 8 cores no pod of 2 cores fits on a. The DaemonSet leaves 2 cores on each of two more nodes.
	report := ask(t, o, Options{Policies: []string{"pack"}, Changes: Changes{Add: []Add{{2, "a"}}, Layouts: []Layout{layout}}})
	if s := report.WhatIf[0]; s.StillWaiting != 1 || s.Held != 3 || report.Pods.Staying != 2 {
		t.Errorf("%d wait, %v held, %d stay; want 1, 3 and 2", s.StillWaiting, s.Held, report.Pods.Staying)
	}
	if want := "hold them: 1"; !slices.ContainsFunc(report.Notes, func(note string) bool { return strings.HasSuffix(note, want) }) {
		t.Errorf("notes %q; want one that ends with %q", report.Notes, want)
	}
}
