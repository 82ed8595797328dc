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

// fitPod is a pod with its claim; the claim is nil for a pod that requests an extended resource.
type fitPod struct {
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
}

// TestDRAFit asks berth fit about random claims and pods, creates each, and compares what the scheduler does: whether it is scheduled,
// and the devices that it gets on the node that the scheduler chose.
func TestDRAFit(t *testing.T) {
	l := &fitLab{draLab: newDRALab(t), random: seeded(t)}
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
	start, fits, rounds := time.Now(), 0, killRounds(30, 200)
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
	if fits < rounds/5 || fits > rounds*9/10 {
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
	if l.random.IntN(5) == 0 {
		resources := []string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-4g.40gb"}
		limits := corev1.ResourceList{corev1.ResourceName(resources[l.random.IntN(len(resources))]): *resource.NewQuantity(1+l.random.Int64N(9), resource.DecimalSI)}
		one.pod.Spec.Containers[0].Resources.Limits = limits
		return one
	}
	var requests []resourceapi.DeviceRequest
	for i := range 1 + l.random.IntN(2) {
		requests = append(requests, l.drawRequest(fmt.Sprintf("r%d", i)))
	}
	one.claim = claimOf(name, requests...)
	if l.random.IntN(3) == 0 {
		names := []resourceapi.FullyQualifiedName{pool.DefaultDriver + "/nvlinkIsland", pool.DefaultDriver + "/productName", "resource.kubernetes.io/numaNode"}
		one.claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &names[l.random.IntN(len(names))]}}
	}
	one.pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &name}}
	one.pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
	return one
}

func (l *fitLab) drawRequest(name string) resourceapi.DeviceRequest {
	memory := fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("78Gi")) >= 0`, pool.DefaultDriver)
	missing := fmt.Sprintf(`device.attributes[%q].noSuchAttribute == "a"`, pool.DefaultDriver)
	conditions := [][]string{nil, nil, {attribute("architecture", "Hopper")}, {attribute("architecture", "Ampere")}, {attribute("architecture", "Volta")}, {memory}, {missing}}
	// The last one fails on every device, and so stops the scheduler.
	chosen := conditions[l.random.IntN(len(conditions)-1)]
	if l.random.IntN(20) == 0 {
		chosen = conditions[len(conditions)-1]
	}
	request := gpuRequest(name, 1+l.random.Int64N(5), chosen...)
	if l.random.IntN(3) == 0 {
		profiles := []string{"1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "1g.5gb"}
		request.Exactly.DeviceClassName = "mig-" + profiles[l.random.IntN(len(profiles))] + "." + pool.DefaultDriver
	}
	if l.random.IntN(4) == 0 {
		request.Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/repair", Operator: resourceapi.DeviceTolerationOpExists}}
	}
	return request
}

// ask returns what berth fit says of a pod.
func (l *fitLab) ask(t *testing.T, one *fitPod) v1alpha1.FitItem {
	t.Helper()
	pod := one.pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	objects := []any{pod}
	if one.claim != nil {
		claim := one.claim.DeepCopy()
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
	if one.claim != nil {
		if _, err := l.Client().ResourceV1().ResourceClaims(one.claim.Namespace).Create(t.Context(), one.claim, metav1.CreateOptions{}); err != nil {
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
	name := pod.Name
	if one.claim == nil {
		if pod.Status.ExtendedResourceClaimStatus == nil {
			t.Fatalf("pod %s has no claim for its extended resources", pod.Name)
		}
		name = pod.Status.ExtendedResourceClaimStatus.ResourceClaimName
	}
	claim, err := l.Client().ResourceV1().ResourceClaims(pod.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || claim.Status.Allocation == nil {
		t.Fatalf("claim %s of a scheduled pod is not allocated: %v", name, err)
	}
	var got, want []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		got = append(got, result.Request+" "+result.Pool+"/"+result.Device)
	}
	for _, device := range item.Nodes[at].Devices {
		want = append(want, device.Request+" "+device.Pool+"/"+device.Device)
	}
	if !slices.Equal(got, want) {
		t.Errorf("pod %s has the devices\n%v, and berth fit has said\n%v", pod.Name, got, want)
	}
}

// delete removes a pod and its claim, and waits until only the claims of the pods that stay are allocated.
func (l *fitLab) delete(t *testing.T, one *fitPod) {
	t.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := l.Client().CoreV1().Pods(one.pod.Namespace).Delete(t.Context(), one.pod.Name, now); err != nil {
		t.Fatal(err)
	}
	claims := l.Client().ResourceV1().ResourceClaims(one.pod.Namespace)
	if one.claim != nil {
		if err := claims.Delete(t.Context(), one.claim.Name, metav1.DeleteOptions{}); err != nil {
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
			ofPod := claim.Name == one.pod.Name || slices.ContainsFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == one.pod.Name })
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
