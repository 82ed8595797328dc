package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// fitLabel selects the nodes of TestDRAFit, which have no kubelet: pods are scheduled to them and never start.
const fitLabel = "fit.berth.dev/node"

// fitLab compares berth fit with the scheduler.
type fitLab struct {
	*draLab
	random *rand.Rand
	// kept are the pods that stay, with their claims.
	kept []*fitPod
}

// fitPod is a pod with its claims; a pod that requests an extended resource may have none.
type fitPod struct {
	pod    *corev1.Pod
	claims []*resourceapi.ResourceClaim
}

// TestDRAFit asks berth fit about random claims and pods, creates each, and compares what the scheduler does: whether it is scheduled,
// and the devices that it gets on the node that the scheduler chose.
func TestDRAFit(t *testing.T) {
	soakOnly(t)
	onOwnCluster(t, 2)
	l := &fitLab{draLab: newDRALab(t, sandbox.Options{}), random: seeded(t)}
	l.setConfigs(t, map[string]string{"default": plainConfig + `gpus:
- select: {model: ["NVIDIA H100*"]}
  allocation: {api: dra}
  dynamicMIG: true
- select: {}
  allocation: {api: dra}
`})
	l.waitDevices(t, 8*26)
	l.other.waitPublished(t, upTo(8)...)
	devices := append(l.copyNode(t, l.rig, "fit-0"), l.copyNode(t, l.other, "fit-1")...)
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "fit"}}
	tainted := devices[l.random.IntN(len(devices))]
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: new(pool.DefaultDriver), Pool: &tainted.Pool, Device: &tainted.Device}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if _, err := l.Client().ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	label := []byte(`{"metadata":{"labels":{"resource.kubernetes.io/admin-access":"true"}}}`)
	if _, err := l.Client().CoreV1().Namespaces().Patch(t.Context(), metav1.NamespaceDefault, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	start, fits, rounds := time.Now(), 0, 200
	codes := map[v1alpha1.FitReasonCode]int{}
	for round := range rounds {
		if len(l.kept) > 0 && l.random.IntN(3) == 0 {
			at := l.random.IntN(len(l.kept))
			l.delete(t, l.kept[at])
			l.kept = slices.Delete(l.kept, at, at+1)
		}
		one := l.draw(round)
		item := l.ask(t, one)
		if item.Fits {
			fits++
		}
		for _, node := range item.Nodes {
			for _, reason := range node.Reasons {
				if node.Name == "fit-0" || node.Name == "fit-1" {
					codes[reason.Code]++
				}
			}
		}
		l.compare(t, one, item)
		if t.Failed() {
			return
		}
		if item.Fits && l.random.IntN(2) == 0 {
			l.kept = append(l.kept, one)
		} else {
			l.delete(t, one)
		}
	}
	t.Logf("%d of %d fit, compared in %s; reasons of the others: %v", fits, rounds, ms(time.Since(start)), codes)
	if fits < rounds/10 || fits > rounds*9/10 {
		t.Errorf("%d of %d fit: the comparison proves little", fits, rounds)
	}
}

// copyNode creates a Node without a kubelet that has the slices of a real one, and returns its devices.
func (l *fitLab) copyNode(t *testing.T, from *rig, name string) (devices []v1alpha1.FitDevice) {
	t.Helper()
	plenty := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("500"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fitLabel: "true"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: sandbox.HollowLabel, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: plenty, Allocatable: plenty,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if _, err := l.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var all []resourceapi.ResourceSlice
	waitUntil(t, 20*time.Second, "the pool of node "+from.node.Name()+" is complete", func(ctx context.Context) (err error) {
		if all, err = from.slices(ctx); err == nil && int64(len(all)) != all[0].Spec.Pool.ResourceSliceCount {
			err = fmt.Errorf("it has %d of %d slices", len(all), all[0].Spec.Pool.ResourceSliceCount)
		}
		return err
	})
	for i := range all {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: strings.Replace(all[i].Name, from.node.Name(), name, 1)}, Spec: all[i].Spec}
		slice.Spec.NodeName, slice.Spec.Pool.Name = &name, name
		if _, err := l.Client().ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, device := range slice.Spec.Devices {
			devices = append(devices, v1alpha1.FitDevice{Pool: name, Device: device.Name})
		}
	}
	return devices
}

// draw returns a random pod.
func (l *fitLab) draw(round int) *fitPod {
	name := fmt.Sprintf("fit-%d", round)
	one := &fitPod{pod: workloadPod(name, "sleep")}
	one.pod.Spec.NodeSelector = map[string]string{fitLabel: "true"}
	one.pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	claims := []int{0, 1, 1, 1, 1, 1, 1, 2}[l.random.IntN(8)]
	for i := range claims {
		claimName, entry := fmt.Sprintf("%s-%d", name, i), fmt.Sprintf("devices-%d", i)
		one.claims = append(one.claims, l.drawClaim(claimName))
		one.pod.Spec.ResourceClaims = append(one.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: entry, ResourceClaimName: &claimName})
		one.pod.Spec.Containers[0].Resources.Claims = append(one.pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: entry})
	}
	if claims == 0 || l.random.IntN(8) == 0 {
		l.drawExtended(one.pod)
	}
	return one
}

// drawExtended adds an extended resource to a pod, and to init containers of it, one of which keeps running.
func (l *fitLab) drawExtended(pod *corev1.Pod) {
	names := []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-4g.40gb"}
	name := names[l.random.IntN(len(names))]
	limits := func(most int64) corev1.ResourceList {
		return corev1.ResourceList{name: *resource.NewQuantity(1+l.random.Int64N(most), resource.DecimalSI)}
	}
	pod.Spec.Containers[0].Resources.Limits = limits(9)
	if l.random.IntN(2) == 0 {
		return
	}
	for i, policy := range []*corev1.ContainerRestartPolicy{nil, new(corev1.ContainerRestartPolicyAlways), nil} {
		made := *pod.Spec.Containers[0].DeepCopy()
		made.Name, made.RestartPolicy, made.Resources = fmt.Sprintf("init-%d", i), policy, corev1.ResourceRequirements{Limits: limits(5)}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, made)
	}
}

func (l *fitLab) drawClaim(name string) *resourceapi.ResourceClaim {
	var requests []resourceapi.DeviceRequest
	for i := range 1 + l.random.IntN(2) {
		requests = append(requests, l.drawRequest(fmt.Sprintf("r%d", i)))
	}
	claim := claimOf(name, requests...)
	if l.random.IntN(3) == 0 {
		names := []resourceapi.FullyQualifiedName{pool.DefaultDriver + "/nvlinkIsland", pool.DefaultDriver + "/productName", "resource.kubernetes.io/numaNode"}
		constraint := resourceapi.DeviceConstraint{MatchAttribute: &names[l.random.IntN(len(names))]}
		if l.random.IntN(3) == 0 {
			constraint = resourceapi.DeviceConstraint{DistinctAttribute: constraint.MatchAttribute}
		}
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{constraint}
	}
	return claim
}

func (l *fitLab) drawRequest(name string) resourceapi.DeviceRequest {
	memory := fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("78Gi")) >= 0`, pool.DefaultDriver)
	missing := fmt.Sprintf(`device.attributes[%q].noSuchAttribute == "a"`, pool.DefaultDriver)
	conditions := [][]string{nil, nil, nil, nil, {attribute("architecture", "Hopper")}, {attribute("architecture", "Ampere")}, {attribute("architecture", "Volta")}, {memory}, {missing}}
	// The last one fails on every device, and so stops the scheduler.
	chosen := conditions[l.random.IntN(len(conditions)-1)]
	if l.random.IntN(20) == 0 {
		chosen = conditions[len(conditions)-1]
	}
	request := gpuRequest(name, 1+l.random.Int64N(4), chosen...)
	exact := request.Exactly
	if l.random.IntN(4) == 0 {
		profiles := []string{"1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "1g.5gb"}
		exact.DeviceClassName = "mig-" + profiles[l.random.IntN(len(profiles))] + "." + pool.DefaultDriver
	}
	if l.random.IntN(4) == 0 {
		exact.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/repair", Operator: resourceapi.DeviceTolerationOpExists}}
	}
	switch l.random.IntN(8) {
	case 0:
		exact.AllocationMode, exact.Count = resourceapi.DeviceAllocationModeAll, 0
	case 1:
		exact.AdminAccess = new(true)
	case 2:
		sub := func(name string, count int64) resourceapi.DeviceSubRequest {
			return resourceapi.DeviceSubRequest{
				Name: name, DeviceClassName: exact.DeviceClassName, Selectors: exact.Selectors, Tolerations: exact.Tolerations,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			}
		}
		return resourceapi.DeviceRequest{Name: name, FirstAvailable: []resourceapi.DeviceSubRequest{sub("many", 8), sub("some", exact.Count), sub("one", 1)}}
	}
	return request
}

// ask returns what berth fit says of a pod.
func (l *fitLab) ask(t *testing.T, one *fitPod) v1alpha1.FitItem {
	t.Helper()
	pod := one.pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	objects := []any{pod}
	for i := range one.claims {
		claim := one.claims[i].DeepCopy()
		claim.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"}
		objects = append(objects, claim)
	}
	var text []byte
	for _, object := range objects {
		document, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, "---\n"...), document...)
	}
	file := filepath.Join(t.TempDir(), "fit.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got := l.berth(t, "fit", "-f", file, "-o", "json", "--kubeconfig", l.KubeconfigPath())
	var answer v1alpha1.Fit
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || len(answer.Items) != 1 {
		t.Fatalf("berth fit: exit code %d: %s%s (%v)", got.code, got.out, got.err, err)
	}
	if want := map[bool]int{true: 0, false: 1}[answer.Fits]; got.code != want {
		t.Errorf("fits: %v, and the exit code is %d", answer.Fits, got.code)
	}
	return answer.Items[0]
}

// compare creates a pod and checks that the scheduler does what berth fit has said.
func (l *fitLab) compare(t *testing.T, one *fitPod, item v1alpha1.FitItem) {
	t.Helper()
	for _, claim := range one.claims {
		if _, err := l.Client().ResourceV1().ResourceClaims(claim.Namespace).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pods := l.Client().CoreV1().Pods(one.pod.Namespace)
	if _, err := pods.Create(t.Context(), one.pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pod *corev1.Pod
	waitUntil(t, 30*time.Second, fmt.Sprintf("the scheduler has decided about pod %s as berth fit has (fits: %v)", one.pod.Name, item.Fits), func(ctx context.Context) (err error) {
		if pod, err = pods.Get(ctx, one.pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
		if at < 0 {
			return fmt.Errorf("it has not decided")
		}
		// A device that was released a moment ago can be held for the scheduler a moment longer; it then tries again.
		if scheduled := pod.Status.Conditions[at].Status == corev1.ConditionTrue; scheduled != item.Fits {
			return fmt.Errorf("scheduled: %v: %s", scheduled, pod.Status.Conditions[at].Message)
		}
		return nil
	})
	if !item.Fits || t.Failed() {
		return
	}
	at := slices.IndexFunc(item.Nodes, func(node v1alpha1.FitNode) bool { return node.Name == pod.Spec.NodeName })
	if at < 0 || !item.Nodes[at].Fits {
		t.Errorf("pod %s is on node %s, on which it does not fit: %v", pod.Name, pod.Spec.NodeName, item)
		return
	}
	var names, got, want []string
	for _, claim := range one.claims {
		names = append(names, claim.Name)
	}
	if len(extendedOf(pod)) > 0 {
		if pod.Status.ExtendedResourceClaimStatus == nil {
			t.Fatalf("pod %s has no claim for its extended resources", pod.Name)
		}
		names = append(names, pod.Status.ExtendedResourceClaimStatus.ResourceClaimName)
	}
	for _, name := range names {
		claim, err := l.Client().ResourceV1().ResourceClaims(pod.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || claim.Status.Allocation == nil {
			t.Fatalf("claim %s of a scheduled pod is not allocated: %v", name, err)
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			got = append(got, result.Request+" "+result.Pool+"/"+result.Device)
		}
	}
	for _, device := range item.Nodes[at].Devices {
		want = append(want, device.Request+" "+device.Pool+"/"+device.Device)
	}
	if !slices.Equal(got, want) {
		t.Errorf("pod %s has the devices\n%v, and berth fit has said\n%v", pod.Name, got, want)
	}
}

// extendedOf returns the extended resources that a pod's container requests.
func extendedOf(pod *corev1.Pod) corev1.ResourceList { return pod.Spec.Containers[0].Resources.Limits }

// delete removes a pod and its claims, and waits until only the claims of the pods that stay are allocated.
func (l *fitLab) delete(t *testing.T, one *fitPod) {
	t.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := l.Client().CoreV1().Pods(one.pod.Namespace).Delete(t.Context(), one.pod.Name, now); err != nil {
		t.Fatal(err)
	}
	claims := l.Client().ResourceV1().ResourceClaims(one.pod.Namespace)
	for _, claim := range one.claims {
		if err := claims.Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, 30*time.Second, "the devices of pod "+one.pod.Name+" are released", func(ctx context.Context) error {
		if _, err := l.Client().CoreV1().Pods(one.pod.Namespace).Get(ctx, one.pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is there (%w)", err)
		}
		list, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		held := map[string]bool{}
		for i := range list.Items {
			claim := &list.Items[i]
			ofPod := slices.ContainsFunc(one.claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == claim.Name }) || slices.ContainsFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == one.pod.Name })
			if ofPod && claim.Status.Allocation != nil {
				held[claim.Name] = true
			}
		}
		if len(held) > 0 {
			return fmt.Errorf("claims are allocated: %v", slices.Sorted(maps.Keys(held)))
		}
		return nil
	})
}
