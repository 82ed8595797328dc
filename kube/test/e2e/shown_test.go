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

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// shown is what berth trace and berth gpus must print about a pod's replica of a device.
type shown struct {
	// index is how Berth prints the device: 0, or 3:1 for a MIG device.
	index string
	// replica is which replica it is, such as "1 of 3"; empty for a device that is not shared.
	replica string
	// sharing is how the device is shared and which limits are enforced.
	sharing string
	// column is the same in the table of berth gpus.
	column string
	// placement is where a MIG device is on its GPU.
	placement string
	// with are the other pods on the same device, neighbours those on other MIG devices of the GPU.
	with, neighbours []*corev1.Pod
}

// replicaOf returns the number of a pod's replica and their total, counted from 1.
func (r *rig) replicaOf(t testing.TB, pod *corev1.Pod, replicas int) string {
	t.Helper()
	_, replica, err := offer.ParseDeviceID(r.idsOf(t, pod)[0])
	if err != nil || replica == 0 {
		t.Fatalf("pod %s has no replica: %v, %v", pod.Name, r.idsOf(t, pod), err)
	}
	return fmt.Sprintf("%d of %d", replica, replicas)
}

// names formats pods as Berth prints them, in order.
func names(pods []*corev1.Pod) string {
	var list []string
	for _, pod := range pods {
		list = append(list, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// waitHeld waits until the GPUNode names pods as the holders of what the kubelet allocated to them.
func (r *rig) waitHeld(t testing.TB, pods ...*corev1.Pod) {
	t.Helper()
	waitUntil(t, 15*time.Second, "the GPUNode names the holders of all replicas", func(ctx context.Context) error {
		node, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		held := map[string]string{}
		note := func(uuid string, holders []v1alpha1.Holder) {
			for _, h := range holders {
				id := uuid
				if h.Share > 0 {
					id = fmt.Sprintf("%s::%d", uuid, h.Share-1)
				}
				held[id] = h.Namespace + "/" + h.Pod + " " + h.PodUID
			}
		}
		for _, gpuInfo := range node.Status.Devices {
			note(gpuInfo.UUID, gpuInfo.Holders)
			for _, part := range gpuInfo.MIGDevices {
				note(part.UUID, part.Holders)
			}
		}
		for _, pod := range pods {
			for _, id := range r.idsOf(t, pod) {
				if want := pod.Namespace + "/" + pod.Name + " " + string(pod.UID); held[id] != want {
					return fmt.Errorf("%s is held by %q, want %q", id, held[id], want)
				}
			}
		}
		return nil
	})
}

// checkShown checks the output of berth trace about a pod with one replica, with all of the node's sources.
func (r *rig) checkShown(t testing.TB, pod *corev1.Pod, want shown) {
	t.Helper()
	w := &tracer{rig: r, pod: pod, uuids: []string{uuidOf(r.idsOf(t, pod)[0])}, places: map[string]string{
		"--host-root": r.node.Root(), "--cgroup-root": "/" + r.node.Cgroup(), "--sim": r.node.SimDir(), "--kubeconfig": r.KubeconfigPath(),
	}}
	w.places["--agent"] = w.forwardAgent(t, func(state []byte) []byte { return state })
	r.waitHeld(t, append(slices.Concat(want.with, want.neighbours), pod)...)

	facts := map[string]string{
		"index": want.index, "share": want.replica, "sharing": want.sharing, "placement": want.placement,
		"sharedWith": names(want.with), "neighbours": names(want.neighbours), "advisory": "", "draining": "",
	}
	found := w.checkAgrees(t, r.berth(t, w.args(nil, pod.Name, "-o", "json")...), holdSources)
	device := found.Pods[0].Containers[0].Devices[0]
	for name, value := range facts {
		if got := factOf(device, name); got != value {
			t.Errorf("berth trace reports %s of the device of pod %s: %q, want %q", name, pod.Name, got, value)
		}
	}

	text := r.berth(t, w.args(nil, pod.Name)...)
	name := "GPU " + want.index
	if strings.Contains(want.index, ":") {
		name = "MIG device " + want.index
	}
	if text.code != 0 {
		t.Errorf("berth trace ends with %d:\n%s%s", text.code, text.out, text.err)
	}
	for format, value := range map[string]string{
		"%s": w.uuids[0], "%s ": want.sharing, "%s: isolated": want.placement, "replica %s": want.replica,
		"shares " + name + " with %s": names(want.with), "other MIG devices of the GPU: %s": names(want.neighbours),
	} {
		if line := fmt.Sprintf(format, value); value != "" && !strings.Contains(text.out, line) {
			t.Errorf("berth trace should print %q:\n%s", line, text.out)
		}
	}
	r.checkListed(t, w.uuids[0], want, append(slices.Clone(want.with), pod))
}

// factOf returns a fact of a traced device; empty when no source has it.
func factOf(device v1alpha1.TraceDevice, name string) string {
	var values []string
	for _, fact := range device.Facts {
		if fact.Name == name && len(fact.Sources) > 0 {
			values = append(values, fact.Value)
		}
	}
	return strings.Join(values, " | ")
}

// checkListed checks the output of berth gpus, run outside the cluster, about a device and its holders.
func (r *rig) checkListed(t testing.TB, uuid string, want shown, pods []*corev1.Pod) {
	t.Helper()
	table := r.berth(t, "gpus", "--kubeconfig", r.KubeconfigPath())
	i := slices.IndexFunc(strings.Split(table.out, "\n"), func(line string) bool { return strings.Contains(line, uuid) })
	if table.code != 0 || i < 0 {
		t.Fatalf("berth gpus ends with %d and should list %s:\n%s%s", table.code, uuid, table.out, table.err)
	}
	row := strings.Split(table.out, "\n")[i]
	for _, cell := range []string{want.index, want.column, names(pods)} {
		if !strings.Contains(row, cell) {
			t.Errorf("berth gpus prints %q, want %q in it", row, cell)
		}
	}
	list := &v1alpha1.GPUList{}
	blob := r.berth(t, "gpus", "--kubeconfig", r.KubeconfigPath(), "-o", "json")
	decoder := json.NewDecoder(strings.NewReader(blob.out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(list); err != nil {
		t.Fatalf("decode list: %v\n%s%s", err, blob.out, blob.err)
	}
	var offered *v1alpha1.DeviceOffer
	var holders []v1alpha1.Holder
	for _, gpuInfo := range list.Items {
		if gpuInfo.UUID == uuid {
			offered, holders = gpuInfo.Offered, gpuInfo.Holders
		}
		for _, part := range gpuInfo.MIGDevices {
			if part.UUID == uuid {
				offered, holders = part.Offered, part.Holders
			}
		}
	}
	if offered == nil || len(holders) != len(pods) {
		t.Fatalf("berth gpus shows %s advertised as %+v with the holders %+v", uuid, offered, holders)
	}
	for _, pod := range pods {
		if !slices.ContainsFunc(holders, func(h v1alpha1.Holder) bool {
			return h.PodUID == string(pod.UID) && h.Pod == pod.Name && h.Container == "main" && (h.Share > 0) == (want.replica != "")
		}) {
			t.Errorf("berth gpus does not show that pod %s has a replica of %s: %+v", pod.Name, uuid, holders)
		}
	}
}
