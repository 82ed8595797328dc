package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// allByDRA allocates every GPU through DRA.
const allByDRA = plainConfig + `gpus:
- select: {}
  allocation: {api: dra}
`

// draLab is a lab of a node with 8 H100 and one with 8 A100 unless a test asks for others, with the DeviceClasses of Berth.
type draLab struct {
	*lab
	// other is the second node.
	other *rig
}

func newDRALab(t testing.TB, o sandbox.Options) *draLab {
	t.Helper()
	o.Nodes, o.Profile = 2, cmp.Or(o.Profile, "h100x8")
	if o.NodeProfiles == nil {
		o.NodeProfiles = map[string]string{"node-1": "a100x8-80g"}
	}
	if o.KubeletConfig == nil {
		// The kubelet repeats a failed prepare after this time and up to a half more; the default is a minute.
		o.KubeletConfig = map[string]any{"syncFrequency": "3s"}
	}
	l := &draLab{lab: newLab(t, o)}
	node := l.Nodes()[1]
	l.other = &rig{Cluster: l.Cluster, node: node, mode: &podAgent{node: node}}
	classes, err := class.Classes(class.Settings{Profiles: class.DefaultProfiles()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range classes {
		if _, err := l.Client().ResourceV1().DeviceClasses().Create(t.Context(), &classes[i], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// slices returns the slices of the driver on a node, by name.
func (r *rig) slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := r.Client().ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + r.node.Name()})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// published returns the minor numbers of the GPUs that a node's slices have, in order.
func (r *rig) published(ctx context.Context) ([]uint32, error) {
	all, err := r.slices(ctx)
	if err != nil {
		return nil, err
	}
	var numbers []uint32
	for i := range all {
		for _, device := range all[i].Spec.Devices {
			minor, err := r.minorOf(device.Name)
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, minor)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// minorOf returns the minor number of the GPU that a published device is.
func (r *rig) minorOf(device string) (uint32, error) {
	machine, err := sim.Open(r.node.SimDir())
	if err != nil {
		return 0, err
	}
	shown, err := machine.Show()
	if err != nil {
		return 0, err
	}
	for _, g := range shown.GPUs {
		if strings.HasPrefix(device, strings.ToLower(g.UUID)) {
			return uint32(g.Minor), nil
		}
	}
	return 0, fmt.Errorf("device %s is none of node %s", device, r.node.Name())
}

// waitPublished waits until a node has published exactly these GPUs, and returns when that was.
func (r *rig) waitPublished(t testing.TB, want ...uint32) time.Time {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("node %s has published the GPUs %v", r.node.Name(), want), func(ctx context.Context) error {
		got, err := r.published(ctx)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it has published %v", got)
		}
		return err
	})
	return time.Now()
}

// gpuRequest is a request for whole GPUs that meet each condition.
func gpuRequest(name string, count int64, conditions ...string) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: pool.DefaultDriver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, condition := range conditions {
		exact.Selectors = append(exact.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: condition}})
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

func attribute(name, value string) string {
	return fmt.Sprintf("device.attributes[%q].%s == %q", pool.DefaultDriver, name, value)
}

func claimOf(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// podUsing is a pod whose container uses claims.
func podUsing(name string, claims ...string) *corev1.Pod {
	pod := workloadPod(name, "sleep")
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: new(claim)})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	return pod
}

// claim creates claims, and deletes them after the test.
func (l *draLab) claim(t testing.TB, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	client := l.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, claim := range claims {
			if err := client.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		if err := poll(ctx, "the claims are gone", func() error {
			for _, claim := range claims {
				if _, err := client.Get(ctx, claim.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("claim %s is there (%w)", claim.Name, err)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	for _, claim := range claims {
		if _, err := client.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// claimed returns the minor numbers of the GPUs that claims have on a node, in order.
func (r *rig) claimed(t testing.TB, claims ...string) []uint32 {
	t.Helper()
	var numbers []uint32
	for _, name := range claims {
		claim, err := r.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if claim.Status.Allocation == nil {
			t.Fatalf("claim %s is not allocated", name)
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			minor, err := r.minorOf(result.Device)
			if err != nil {
				t.Fatalf("claim %s: %v", name, err)
			}
			numbers = append(numbers, minor)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// checkClaimed checks that a pod has exactly the GPUs of its claims, this many, and can open no other. It returns them.
func (r *rig) checkClaimed(t testing.TB, pod *corev1.Pod, count int) []uint32 {
	t.Helper()
	var names []string
	for _, claim := range pod.Spec.ResourceClaims {
		names = append(names, *claim.ResourceClaimName)
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName == nil {
			t.Errorf("pod %s has no claim for %s", pod.Name, status.Name)
		}
	}
	numbers := r.claimed(t, names...)
	if len(numbers) != count {
		t.Errorf("the claims of pod %s have the GPUs %v, want %d", pod.Name, numbers, count)
	}
	r.checkNodes(t, pod, numbers)
	return numbers
}

// holdings returns the keys of the devices that the agent's ledger has, with their holders.
func (l *draLab) holdings(ctx context.Context) (map[string]string, error) {
	state, err := l.agentState(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, h := range state.Holdings {
		key := h.Key.String()
		if all[key] != "" {
			err = errors.Join(err, fmt.Errorf("device %s has two holders", key))
		}
		all[key] = h.Holder.Kind + " " + h.Holder.ID + h.Holder.PodUID // One of them is empty.
	}
	return all, err
}

// waitNothingHeld waits until the ledger has no holding.
func (l *draLab) waitNothingHeld(t testing.TB) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the ledger has no holding", func(ctx context.Context) error {
		held, err := l.holdings(ctx)
		if err == nil && len(held) > 0 {
			err = fmt.Errorf("it has %v", held)
		}
		return err
	})
}

// checkNoConflict fails if an agent has reported a conflict.
func (l *draLab) checkNoConflict(t testing.TB) {
	t.Helper()
	for _, r := range []*rig{l.rig, l.other} {
		for line := range strings.Lines(r.agentLog()) {
			if strings.Contains(line, "DEVICE_CONFLICT") {
				t.Errorf("the agent of %s has reported: %s", r.node.Name(), line)
			}
		}
	}
}
