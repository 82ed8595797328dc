package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/doctor"
	"github.com/berth-gpu/berth/internal/core/problem"
)

type fakeAPI struct {
	node    *corev1.Node
	gpuNode *v1alpha1.GPUNode
	pods    []corev1.Pod
	metrics string
	quotas  []corev1.ResourceQuota
	err     error
}

func (f *fakeAPI) ResourceQuotas(context.Context) ([]corev1.ResourceQuota, error) {
	if f.quotas == nil {
		return nil, errors.New("resourcequotas is forbidden")
	}
	return f.quotas, nil
}

func (f *fakeAPI) AgentPods(context.Context) ([]corev1.Pod, error) { return f.pods, f.err }

func (f *fakeAPI) AgentMetrics(_ context.Context, pod *corev1.Pod) (map[string]*dto.MetricFamily, error) {
	if f.metrics == "" {
		return nil, errors.New("read metrics of " + pod.Name + ": forbidden")
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(strings.NewReader(f.metrics))
}

func (f *fakeAPI) Node(_ context.Context, name string) (*corev1.Node, error) {
	if f.node == nil || f.node.Name != name {
		return nil, errors.Join(f.err, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name))
	}
	return f.node, nil
}

func (f *fakeAPI) GPUNode(_ context.Context, name string) (*v1alpha1.GPUNode, error) {
	if f.err != nil {
		return nil, f.err
	}
	if f.gpuNode == nil || f.gpuNode.Name != name {
		return nil, apierrors.NewNotFound(v1alpha1.GPUNodes().GroupResource(), name)
	}
	return f.gpuNode, nil
}

func TestOfNode(t *testing.T) {
	healthy := func() *fakeAPI {
		return &fakeAPI{
			node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
				Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.0"},
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
						{Type: "BerthGPUsHealthy", Status: corev1.ConditionTrue}}}},
			gpuNode: &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1alpha1.GPUNodeStatus{
				Driver: v1alpha1.GPUDriver{Version: "580.1"}, Devices: []v1alpha1.GPUDevice{{UUID: "GPU-a"}}}},
		}
	}
	quota := func(name string, resources ...corev1.ResourceName) corev1.ResourceQuota {
		q := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
		for _, name := range resources {
			q.Spec.Hard[name] = resource.MustParse("1")
		}
		return q
	}
	since := metav1.NewTime(time.Unix(0, 0))
	tests := map[string]struct {
		fault func(*fakeAPI)
		want  []string
	}{
		"healthy": {func(*fakeAPI) {}, []string{"ok  v1.36.0", "ok  2 conditions of nodes/n",
			"ok  gpunodes/n: 1 GPU, driver 580.1, no problem"}},
		"no such node": {func(f *fakeAPI) { f.node, f.gpuNode = nil, nil },
			[]string{`unknown  nodes/n: nodes "n" not found`,
				`problem GPUNODE_MISSING gpunodes/n: gpunodes.berth.dev "n" not found`}},
		"node is gone": {func(f *fakeAPI) {
			f.node.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady,
				Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}
		}, []string{"ok  v1.36.0", "problem NODE_NOT_READY nodes/n, condition Ready is Unknown: NodeStatusUnknown",
			"ok  gpunodes/n: 1 GPU, driver 580.1, no problem"}},
		"disk pressure": {func(f *fakeAPI) {
			f.node.Status.Conditions[1] = corev1.NodeCondition{Type: "DiskPressure", Status: corev1.ConditionTrue, Message: "full"}
		}, []string{"ok  v1.36.0", "problem NODE_PRESSURE nodes/n, condition DiskPressure is True: full",
			"ok  gpunodes/n: 1 GPU, driver 580.1, no problem"}},
		"quotas that count": {func(f *fakeAPI) {
			f.node.Status.Capacity = corev1.ResourceList{"example.com/gpu": resource.MustParse("8"), "cpu": resource.MustParse("4")}
			f.quotas = []corev1.ResourceQuota{quota("a", "requests.example.com/gpu", "limits.cpu", "cpu"), quota("b", "example.com/fpga")}
		}, []string{"ok  v1.36.0", "ok  2 conditions of nodes/n", "ok  gpunodes/n: 1 GPU, driver 580.1, no problem",
			"ok  2 ResourceQuotas, none with a name of the node's resources that is never counted"}},
		"quotas that do not": {func(f *fakeAPI) {
			f.node.Status.Capacity = corev1.ResourceList{"example.com/gpu": resource.MustParse("8")}
			f.quotas = []corev1.ResourceQuota{quota("b", "limits.example.com/gpu"), quota("a", "example.com/gpu", "requests.example.com/gpu")}
		}, []string{"ok  v1.36.0", "ok  2 conditions of nodes/n", "ok  gpunodes/n: 1 GPU, driver 580.1, no problem",
			"problem QUOTA_NOT_COUNTED ResourceQuota ml/a limits example.com/gpu, ml/b limits limits.example.com/gpu"}},
		"agent's word": {func(f *fakeAPI) {
			f.gpuNode.Status.Problems = []v1alpha1.Cause{{Code: "DRIVER_MISSING", Message: "none", Since: &since}}
			f.gpuNode.Status.Conditions = []metav1.Condition{{Type: "ConfigAccepted", Status: metav1.ConditionFalse, Message: "line 3"}}
			f.gpuNode.Status.Devices[0].Health = v1alpha1.DeviceHealth{State: "Unhealthy",
				Causes: []v1alpha1.Cause{{Code: "XID48", Message: "m"}}}
			f.gpuNode.Status.Devices[0].Holders = []v1alpha1.Holder{{Kind: "Pod", Namespace: "ml", Pod: "b"},
				{Kind: "Pod", Namespace: "ml", Pod: "b"}}
			f.gpuNode.Status.Devices[0].MIGDevices = []v1alpha1.MIGDevice{{Holders: []v1alpha1.Holder{{Kind: "Orphan"}}}}
		}, []string{
			"ok  v1.36.0", "ok  2 conditions of nodes/n", "problem DRIVER_MISSING none",
			"problem CONDITION_FALSE gpunodes/n, condition ConfigAccepted: line 3",
			"problem XID48 GPU 0 (GPU-a) is Unhealthy: m; held by an unknown pod, ml/b",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := healthy()
			tc.fault(api)
			var got []string
			for _, f := range doctor.OfNode(t.Context(), api, "n").Findings {
				got = append(got, fmt.Sprintf("%s %s %s", f.Status, f.Code, f.Evidence))
				if entry, known := problem.Find(f.Code); f.Status == v1alpha1.DoctorProblem &&
					(!known || f.Fix != entry.Fix || f.Fix == "") {
					t.Errorf("%s: fix %q, want the catalogue's", f.Code, f.Fix)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOfNodeAgent checks that problems of the agent are visible from any machine: in its pod, in the kubelet's devices,
// and in the health of each MIG device.
func TestOfNodeAgent(t *testing.T) {
	pod := func(node, name string, ready corev1.ConditionStatus, message string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: name}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, Message: message}}},
		}
	}
	healthy := func() *fakeAPI {
		f := &fakeAPI{
			node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
				NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.0"},
				Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"),
					"nvidia.com/mig-1g.5gb": resource.MustParse("1")},
			}},
			gpuNode: &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n"},
				Status: v1alpha1.GPUNodeStatus{Driver: v1alpha1.GPUDriver{Version: "580.1"}}},
			pods: []corev1.Pod{pod("other", "berth-agent-x", corev1.ConditionTrue, ""),
				pod("n", "berth-agent-a", corev1.ConditionTrue, "")},
			metrics: "# TYPE berth_device_plugin_healthy_devices gauge\n" +
				"berth_device_plugin_healthy_devices{resource=\"nvidia.com/gpu\"} 2\n",
		}
		whole := func(index int) v1alpha1.GPUDevice {
			return v1alpha1.GPUDevice{Index: index, UUID: fmt.Sprintf("GPU-%d", index),
				Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"}}
		}
		split := v1alpha1.GPUDevice{Index: 2, UUID: "GPU-2", MIGEnabled: true,
			Health: v1alpha1.DeviceHealth{State: "Healthy"}, MIGDevices: []v1alpha1.MIGDevice{
				{UUID: "MIG-0", Health: &v1alpha1.DeviceHealth{State: "Healthy"},
					Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/mig-1g.5gb"}},
			}}
		f.gpuNode.Status.Devices = []v1alpha1.GPUDevice{whole(0), whole(1), split}
		return f
	}
	tests := map[string]struct {
		fault   func(*fakeAPI)
		verdict v1alpha1.DoctorVerdict
		want    []string // the problems
		has     string   // part of the other findings
	}{
		"healthy": {func(*fakeAPI) {}, v1alpha1.DoctorHealthy, nil, "2 of nvidia.com/gpu, as the agent advertises"},
		"no right to the metrics": {func(f *fakeAPI) { f.metrics = "" }, v1alpha1.DoctorHealthy, nil,
			"1 of nvidia.com/mig-1g.5gb, as the GPUNode has"},
		"the agent does not run": {func(f *fakeAPI) {
			f.pods[1] = pod("n", "berth-agent-a", corev1.ConditionFalse, "containers with unready status: [agent]")
			f.node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
		}, v1alpha1.DoctorProblems, []string{
			"AGENT_NOT_READY pods/berth-system/berth-agent-a: condition Ready is False: containers with unready status: [agent]",
			"ALLOCATABLE_DIFFERS nodes/n has 0 of nvidia.com/gpu allocatable, and the GPUNode has 2 healthy devices",
			"ALLOCATABLE_DIFFERS nodes/n has 0 of nvidia.com/mig-1g.5gb allocatable, and the GPUNode has 1 healthy device",
		}, ""},
		"an upgrade": {func(f *fakeAPI) {
			f.pods = append(f.pods, pod("n", "berth-agent-b", corev1.ConditionFalse, "it starts"))
		}, v1alpha1.DoctorHealthy, nil, "pods/berth-system/berth-agent-a is ready"},
		"no agent on this node": {func(f *fakeAPI) { f.pods = f.pods[:1] }, v1alpha1.DoctorProblems,
			[]string{"AGENT_UNREACHABLE no pod of berth-agent is on the node; other nodes have 1"}, ""},
		"an agent that is no pod": {func(f *fakeAPI) { f.pods = nil }, v1alpha1.DoctorHealthy, nil, "--agent-namespace"},
		"the kubelet has not all": {func(f *fakeAPI) {
			f.node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
		}, v1alpha1.DoctorProblems, []string{"ALLOCATABLE_DIFFERS nodes/n has 1 of nvidia.com/gpu allocatable, and " +
			"the agent advertises 2 healthy devices"}, ""},
		"an unhealthy GPU is not missed": {func(f *fakeAPI) {
			f.metrics = ""
			f.gpuNode.Status.Devices[0].Health = v1alpha1.DeviceHealth{State: "Unhealthy"}
			f.node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
		}, v1alpha1.DoctorHealthy, nil, "1 of nvidia.com/gpu"},
		"a GPU that drains may be held": {func(f *fakeAPI) {
			f.metrics = ""
			f.gpuNode.Status.Devices[0].Health = v1alpha1.DeviceHealth{State: "Draining"}
		}, v1alpha1.DoctorHealthy, nil, "2 of nvidia.com/gpu"},
		"an unhealthy MIG device": {func(f *fakeAPI) {
			f.gpuNode.Status.Devices[2].MIGDevices[0].Health = &v1alpha1.DeviceHealth{State: "Unhealthy",
				Causes: []v1alpha1.Cause{{Code: "XID95", Message: "the driver reported XID 95"}}}
			f.gpuNode.Status.Devices[2].MIGDevices[0].Holders = []v1alpha1.Holder{{Kind: "Pod", Namespace: "ml", Pod: "a"}}
		}, v1alpha1.DoctorProblems, []string{"XID95 MIG device 2:0 (MIG-0) is Unhealthy: the driver reported XID 95; held by ml/a"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := healthy()
			tc.fault(api)
			report := doctor.OfNode(t.Context(), api, "n")
			var problems []string
			var all strings.Builder
			for _, f := range report.Findings {
				fmt.Fprintln(&all, f.Evidence)
				if f.Status == v1alpha1.DoctorProblem {
					problems = append(problems, f.Code+" "+f.Evidence)
				}
			}
			for _, one := range report.NotChecked {
				fmt.Fprintln(&all, one.Why)
			}
			if diff := cmp.Diff(tc.want, problems); diff != "" || report.Verdict != tc.verdict {
				t.Errorf("verdict %s, want %s; problems (-want +got):\n%s", report.Verdict, tc.verdict, diff)
			}
			if !strings.Contains(all.String(), tc.has) {
				t.Errorf("it does not say %q:\n%s", tc.has, all.String())
			}
		})
	}
}
