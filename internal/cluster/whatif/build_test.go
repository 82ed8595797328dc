package whatif

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

const a100 = "NVIDIA A100-SXM4-80GB"

// small reads the cluster of testdata/small.json: MIG, shared GPUs, a node whose agent is down, one with a broken topology, one with a
// GPUNode of a newer version, and one that is not validated.
func small(tb testing.TB) *Objects {
	tb.Helper()
	file, err := os.Open("testdata/small.json")
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	objects := &Objects{}
	if err := objects.Read("small.json", file); err != nil {
		tb.Fatal(err)
	}
	return objects
}

func quantity(number int64) resource.Quantity {
	return *resource.NewQuantity(number, resource.DecimalSI)
}

// profiles are some of the MIG profiles of a GPU with 80 GB.
func profiles() []v1alpha1.MIGProfile {
	return []v1alpha1.MIGProfile{
		{Name: "1g.10gb", ComputeSlices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 7},
		{Name: "2g.20gb", ComputeSlices: 2, Size: 2, Starts: []int{0, 2, 4}, Max: 3},
		{Name: "3g.40gb", ComputeSlices: 3, Size: 4, Starts: []int{0, 4}, Max: 2},
		{Name: "7g.80gb", ComputeSlices: 7, Size: 8, Starts: []int{0}, Max: 1},
	}
}

// addNode adds a node with that many GPUs: whole ones, or with replicas, or with a MIG layout.
func addNode(o *Objects, name string, cores, gigabytes int64, gpus, replicas int, layout []v1alpha1.MIGDevice) {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "nvidia.com/gpu.product": modelName(a100)}}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity(cores), corev1.ResourceMemory: quantity(gigabytes << 30)}
	made := v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	made.Status.Summary.Model = a100
	offer := &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"}
	if replicas > 1 {
		offer = &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu.shared", Replicas: replicas}
	}
	for i := range gpus {
		d := v1alpha1.GPUDevice{UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Product: a100, MIGProfiles: profiles(), Health: v1alpha1.DeviceHealth{State: string(gpu.Healthy)}}
		row := ""
		for k := range gpus {
			cell := "NV12"
			if k == i {
				cell = "X"
			} else if gpus > 4 && k/4 != i/4 {
				cell = "SYS"
			}
			if k > 0 {
				row += " "
			}
			row += cell
		}
		made.Status.Topology = append(made.Status.Topology, row)
		if layout == nil {
			d.Offered = offer
		}
		for _, m := range layout {
			m.UUID = fmt.Sprintf("MIG-%s-%d-%d", name, i, m.Start)
			m.Offered = &v1alpha1.DeviceOffer{Resource: "nvidia.com/mig-" + m.Profile}
			d.MIGDevices, d.MIGEnabled = append(d.MIGDevices, m), true
		}
		made.Status.Devices = append(made.Status.Devices, d)
	}
	for resource, count := range offered(&made) {
		node.Status.Allocatable[corev1.ResourceName(resource)] = quantity(count)
	}
	o.Nodes, o.GPUNodes = append(o.Nodes, node), append(o.GPUNodes, made)
}

// addPod adds a pod that waits, created after those before it.
func addPod(o *Objects, milliCPU, megabytes int64, devices map[string]int64) *corev1.Pod {
	number := len(o.Pods)
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: fmt.Sprintf("pod-%05d", number), UID: types.UID(fmt.Sprint("uid-", number)),
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, number, 0, time.UTC)),
	}}
	list := corev1.ResourceList{}
	for name, count := range devices {
		list[corev1.ResourceName(name)] = quantity(count)
	}
	requests := list.DeepCopy()
	requests[corev1.ResourceCPU], requests[corev1.ResourceMemory] = *resource.NewMilliQuantity(milliCPU, resource.DecimalSI), quantity(megabytes<<20)
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: list}}}
	o.Pods = append(o.Pods, p)
	return &o.Pods[number]
}

// random makes a cluster of nodes of several kinds, and pods that wait.
func random(numbers *rand.Rand, nodes, pods int) *Objects {
	o := &Objects{}
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		switch kind := numbers.IntN(10); {
		case kind < 6:
			addNode(o, name, 96, 768, 8, 1, nil)
		case kind < 7:
			addNode(o, name, 48, 384, 4, 4, nil)
		case kind < 8:
			addNode(o, name, 64, 512, 4, 1, []v1alpha1.MIGDevice{{Profile: "3g.40gb", Start: 0, Size: 4}, {Profile: "2g.20gb", Start: 4, Size: 2}, {Profile: "1g.10gb", Start: 6, Size: 1}})
		default:
			addNode(o, name, 96, 768, 4, 1, nil)
		}
		o.Nodes[i].Labels["zone"] = fmt.Sprint("z", i%3)
	}
	for range pods {
		devices := map[string]int64{}
		switch kind := numbers.IntN(12); {
		case kind < 5:
			devices["nvidia.com/gpu"] = 1 << numbers.IntN(4)
		case kind < 7:
			devices["nvidia.com/gpu"] = 1
		case kind < 8:
			devices["nvidia.com/gpu.shared"] = 1 + numbers.Int64N(2)
		case kind < 10:
			devices["nvidia.com/mig-"+profiles()[numbers.IntN(3)].Name] = 1 + numbers.Int64N(2)
		}
		p := addPod(o, 1000*(1+numbers.Int64N(8)), 4096*(1+numbers.Int64N(8)), devices)
		if numbers.IntN(5) == 0 {
			p.Spec.NodeSelector = map[string]string{"zone": fmt.Sprint("z", numbers.IntN(3))}
		}
	}
	return o
}
