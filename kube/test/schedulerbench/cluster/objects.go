package cluster

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
)

// NodeName is the name of a node of a load.
func NodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// PodName is the name of a pod of a load.
func PodName(i int) string { return fmt.Sprintf("%s%06d", PodPrefix, i) }

// PodPrefix is how the names of the pods of a load begin.
const PodPrefix = "pod-"

// node returns a Node as its kubelet would register it, without a taint.
func node(i int, n load.Node) *corev1.Node {
	name := NodeName(i)
	labels := map[string]string{corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}
	maps.Copy(labels, n.Labels)
	has := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(load.NodeCores, resource.DecimalSI), corev1.ResourceMemory: gib(load.NodeMemoryGiB),
		corev1.ResourcePods: *resource.NewQuantity(load.NodePods, resource.DecimalSI),
		Resource:            *resource.NewQuantity(int64(n.GPUs), resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "v1.37.1"},
		},
	}
}

// gpuNode returns a GPUNode as its agent would write it: Healthy GPUs, connected by NVSwitch, of which the running pods hold the first.
func gpuNode(i int, of load.Node, running []*corev1.Pod) *v1alpha1.GPUNode {
	const model = "NVIDIA A100-SXM4-80GB"
	n := &v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode), ObjectMeta: metav1.ObjectMeta{Name: NodeName(i)}}
	held := holders(running)
	n.Status = v1alpha1.GPUNodeStatus{
		AgentVersion: "bench", Driver: v1alpha1.GPUDriver{Version: "580.95.05", CUDAVersion: "13.0"},
		Summary:  v1alpha1.GPUSummary{GPUs: of.GPUs, Held: len(held), Free: of.GPUs - len(held), Model: model},
		Topology: topology(of.GPUs),
	}
	for g := range of.GPUs {
		device := v1alpha1.GPUDevice{
			UUID: fmt.Sprintf("GPU-%s-%d", n.Name, g), Index: g, Minor: g, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 16+g), Product: model,
			Architecture: "Ampere", ComputeCapability: "8.0", MemoryBytes: 80 << 30, NUMANode: g * 2 / of.GPUs,
			Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: Resource},
		}
		if g < len(held) {
			device.Holders = held[g : g+1]
		}
		n.Status.Devices = append(n.Status.Devices, device)
	}
	return n
}

// holders returns an entry per GPU that the pods hold.
func holders(pods []*corev1.Pod) []v1alpha1.Holder {
	var list []v1alpha1.Holder
	for _, p := range pods {
		for _, c := range p.Spec.Containers {
			gpus := c.Resources.Requests[Resource]
			list = append(list, slices.Repeat([]v1alpha1.Holder{{Kind: "Pod", Namespace: p.Namespace, Pod: p.Name, PodUID: string(p.UID),
				Container: c.Name, Resource: Resource}}, int(gpus.Value()))...)
		}
	}
	return list
}

// topology returns the matrix of GPUs that an NVSwitch connects with 12 NVLinks each.
func topology(gpus int) []string {
	var rows []string
	for i := range gpus {
		row := ""
		for k := range gpus {
			if cell := "NV12 "; i != k {
				row += cell
			} else {
				row += "X "
			}
		}
		rows = append(rows, row[:len(row)-1])
	}
	return rows
}

// pod returns the pod of a turn.
func pod(i int, p load.Pod, scheduler string) *corev1.Pod {
	cores := *resource.NewQuantity(int64(p.Cores), resource.DecimalSI)
	requests := corev1.ResourceList{corev1.ResourceCPU: cores, corev1.ResourceMemory: gib(p.MemoryGiB)}
	limits := corev1.ResourceList{}
	if p.GPUs > 0 {
		requests[Resource] = *resource.NewQuantity(int64(p.GPUs), resource.DecimalSI)
		limits[Resource] = requests[Resource]
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: PodName(i), Namespace: Namespace, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{
			Name: "main", Image: "bench", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}}},
	}
}

// runningPod returns a pod that a node has from the beginning.
func runningPod(node, i int, p load.Pod) *corev1.Pod {
	running := pod(0, p, "")
	running.Name, running.Spec.NodeName = fmt.Sprintf("running-%05d-%d", node, i), NodeName(node)
	return running
}

func gib(n int) resource.Quantity { return *resource.NewQuantity(int64(n)<<30, resource.BinarySI) }
