package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	basemetrics "k8s.io/component-base/metrics"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/kube/internal/plugins"
)

// nicDriver is a driver that is not Berth's, and the name of its DeviceClass.
const nicDriver = "nic.example.com"

// deviceNode is a node of a cluster with DRA.
type deviceNode struct {
	// dra is true where the four GPUs are published in a ResourceSlice, false where a device plugin offers them.
	dra bool
	// nics is how many devices of the other driver the node has.
	nics int
}

// deviceLab returns a fake API server with nodes n0 and so on, and what their GPUNodes say. With mapped, the DeviceClass of the GPUs
// serves the extended resource nvidia.com/gpu.
func deviceLab(nodes []deviceNode, mapped bool) (*lab, []*v1alpha1.GPUNode) {
	gpus := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: resourceapi.DeviceClassSpec{Selectors: ofDriver(driver)}}
	if mapped {
		gpus.Spec.ExtendedResourceName = new(gpuResource)
	}
	nics := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nicDriver}, Spec: resourceapi.DeviceClassSpec{Selectors: ofDriver(nicDriver)}}
	objects, reports := []runtime.Object{gpus, nics}, []*v1alpha1.GPUNode(nil)
	for i, n := range nodes {
		name := fmt.Sprintf("n%d", i)
		made := makeNode(name)
		made.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", i/2)
		slice, report := published(name, "nvlink", healthy)
		if n.dra {
			delete(made.Status.Allocatable, gpuResource)
			objects = append(objects, slice)
		} else {
			report = makeGPUNode(name, "nvlink", healthy, nil)
		}
		objects, reports = append(objects, made), append(reports, report)
		if n.nics > 0 {
			objects = append(objects, nicSlice(name, n.nics))
		}
	}
	return newLab(objects...), reports
}

func ofDriver(name string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", name)}}}
}

// nicSlice returns the ResourceSlice of a node with devices of the other driver.
func nicSlice(node string, count int) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-nics", ResourceVersion: "1"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: nicDriver, NodeName: new(node), Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range count {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("nic-%d", i)})
	}
	return slice
}

// runDevices runs a scheduler with a profile.
func (l *lab) runDevices(t testing.TB, profile string, reports []*v1alpha1.GPUNode) (stop func()) {
	t.Helper()
	l.factory = placement.NewFactory(placement.Deps{Register: func(basemetrics.Registerable) error { return nil }})
	for _, report := range reports {
		l.report(report)
	}
	return l.run(t, profile, plugins.For(l.factory, l.limits))
}

// claimOf creates a ResourceClaim for devices of a class.
func (l *lab) claimOf(t testing.TB, name, class string, count int64) {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("claim-" + name), ResourceVersion: "1"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "devices", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}}
	if _, err := l.client.ResourceV1().ResourceClaims("ml").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// uses has a pod use a ResourceClaim.
func uses(pod *corev1.Pod, claim string) {
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: new(claim)})
	c := &pod.Spec.Containers[0]
	c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim})
}

// deviceGang is a gang of which the members need devices.
type deviceGang struct {
	members int
	gpus    int
	// own are the claims of each member: how many devices of a class. shared is what one claim of all members wants.
	own    map[string]int64
	shared map[string]int64
}

// pods creates the claims of the gang, and returns its members; without labels of a gang where it is not to be one.
func (g *deviceGang) pods(t testing.TB, l *lab, labelled bool) (list []*corev1.Pod) {
	for class, count := range g.shared {
		l.claimOf(t, "shared-"+class, class, count)
	}
	for i := range g.members {
		pod := member("train", i, g.members, g.gpus)
		if !labelled {
			pod.Labels = nil
		}
		for class, count := range g.own {
			name := fmt.Sprintf("%s-%s", pod.Name, class)
			l.claimOf(t, name, class, count)
			uses(pod, name)
		}
		for class := range g.shared {
			uses(pod, "shared-"+class)
		}
		list = append(list, pod)
	}
	return list
}

// TestGangDevices: a gang gets what Kubernetes' own scheduler gives to its pods one by one, also where the planner does not know the
// devices.
func TestGangDevices(t *testing.T) {
	plugin, dra := deviceNode{}, deviceNode{dra: true}
	tests := map[string]struct {
		nodes  []deviceNode
		mapped bool
		gang   deviceGang
	}{
		"GPUs of claims":                           {nodes: []deviceNode{dra, dra}, gang: deviceGang{members: 4, own: map[string]int64{class: 2}}},
		"an extended resource":                     {nodes: []deviceNode{dra, dra}, mapped: true, gang: deviceGang{members: 4, gpus: 2}},
		"an extended resource, two kinds of nodes": {nodes: []deviceNode{plugin, dra}, mapped: true, gang: deviceGang{members: 4, gpus: 2}},
		"a shared claim":                           {nodes: []deviceNode{dra, dra}, gang: deviceGang{members: 3, shared: map[string]int64{class: 1}}},
		"a shared claim beside GPUs of a plugin":   {nodes: []deviceNode{{nics: 1}, {nics: 1}}, gang: deviceGang{members: 3, gpus: 1, shared: map[string]int64{nicDriver: 1}}},
		"two shared claims":                        {nodes: []deviceNode{{dra: true, nics: 1}, {dra: true, nics: 1}}, gang: deviceGang{members: 3, shared: map[string]int64{class: 1, nicDriver: 1}}},
		"another driver beside GPUs of a plugin":   {nodes: []deviceNode{{nics: 1}, plugin, {nics: 2}}, gang: deviceGang{members: 3, gpus: 1, own: map[string]int64{nicDriver: 1}}},
		"another driver beside claims of GPUs":     {nodes: []deviceNode{dra, {dra: true, nics: 2}, {dra: true, nics: 1}}, gang: deviceGang{members: 3, own: map[string]int64{class: 1, nicDriver: 1}}},
		"another driver only":                      {nodes: []deviceNode{plugin, {nics: 2}, {nics: 1}}, gang: deviceGang{members: 3, own: map[string]int64{nicDriver: 1}}},
		// Kubernetes' own scheduler tries to bind a member to n0 again and again, and never can.
		"another driver beside an extended resource": {nodes: []deviceNode{{nics: 2}, {dra: true, nics: 2}, {dra: true, nics: 1}}, mapped: true, gang: deviceGang{members: 3, gpus: 1, own: map[string]int64{nicDriver: 1}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, reports := deviceLab(test.nodes, test.mapped)
			l.runDevices(t, profileWithPodGroups, reports)
			for _, pod := range test.gang.pods(t, l, true) {
				l.add(t, pod)
			}
			l.all(t, "train", test.gang.members)
			if text := l.sentences(t, "train"); strings.Contains(text, "PreBind") {
				t.Errorf("bindings have failed: %s", text)
			}
		})
	}
}

// TestGangFreesClaims: a claim of members without a node that was allocated for a plan that was given up is freed when the gang does not
// fit with it; one that another pod uses is not.
func TestGangFreesClaims(t *testing.T) {
	for name, user := range map[string]string{"unused": "", "used by a member that waits": "train-1", "used by another pod": "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, reports := deviceLab([]deviceNode{{dra: true}, {dra: true}}, false)
			l.runDevices(t, profileWithPodGroups, reports)
			full := makePod("full", 0, 15)
			full.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n0"}
			l.schedule(t, full)
			gang := deviceGang{members: 2, shared: map[string]int64{class: 1}}
			pods := gang.pods(t, l, true)
			claims := l.client.ResourceV1().ResourceClaims("ml")
			claim, err := claims.Get(t.Context(), "shared-"+class, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			claim.Status.Allocation = &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Request: "devices", Driver: driver, Pool: "n0", Device: "gpu-0"}}},
				NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"n0"}}},
				}}},
			}
			if user != "" {
				claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: user, UID: types.UID("uid-" + user)}}
			}
			if _, err := claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, pod := range pods {
				l.add(t, pod)
			}
			if user != "other" {
				if nodes := l.all(t, "train", 2); nodes[0] != "n1" || nodes[1] != "n1" {
					t.Errorf("the members are on %v; want n1", nodes)
				}
				return
			}
			await(t, 20*time.Second, func() string {
				if text := l.why(t, "train-0"); strings.Contains(text, "at most 1 do") {
					return ""
				}
				return l.why(t, "train-0")
			})
			if claim, err = claims.Get(t.Context(), claim.Name, metav1.GetOptions{}); err != nil || claim.Status.Allocation == nil {
				t.Errorf("the claim is %v, %v; want it to keep its allocation", claim, err)
			}
		})
	}
}

// TestUnbindable: a pod, and a gang, are not tried on a node to which Kubernetes can never bind them, and the condition says so.
func TestUnbindable(t *testing.T) {
	l, reports := deviceLab([]deviceNode{{nics: 2}}, true)
	l.runDevices(t, profileWithPodGroups, reports)
	single := makePod("train-single", 1, 1)
	l.claimOf(t, "single", nicDriver, 1)
	uses(single, "single")
	gang := deviceGang{members: 2, gpus: 1, own: map[string]int64{nicDriver: 1}}
	for _, pod := range append(gang.pods(t, l, true), single) {
		l.add(t, pod)
	}
	const want = "Kubernetes cannot bind a pod with ResourceClaims to a node whose device plugin offers nvidia.com/gpu while a DeviceClass serves it elsewhere"
	for _, name := range []string{"train-single", "train-0", "train-1"} {
		await(t, 20*time.Second, func() string {
			if text := l.why(t, name); strings.HasPrefix(text, "Unschedulable: ") && strings.Contains(text, want) {
				return ""
			}
			return name + ": " + l.why(t, name)
		})
	}
	if text := l.sentences(t, "train"); strings.Contains(text, "PreBind") {
		t.Errorf("bindings have failed: %s", text)
	}
}
