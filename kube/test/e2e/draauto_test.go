package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// autoAPI lets each node choose the API.
const autoAPI = plainConfig + "gpus:\n- select: {}\n  allocation: {api: auto}\n"

// waitChoice waits until the newest event about a node's choice has a text.
func (r *rig) waitChoice(t testing.TB, text string) {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("node %s has chosen: %s", r.node.Name(), text), func(ctx context.Context) error {
		list, err := r.Client().EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		newest, at := "no event", time.Time{}
		for i := range list.Items {
			event := &list.Items[i]
			if event.Reason == "AllocationAPIChosen" && event.Regarding.Name == r.node.Name() && event.EventTime.After(at) {
				newest, at = event.Note, event.EventTime.Time
			}
		}
		if !strings.Contains(newest, text) {
			return fmt.Errorf("the event is %q", newest)
		}
		return nil
	})
}

// testDRAAuto lets the nodes choose: one has a running pod of the device plugin, and the other one has none. The choice stays when the pod
// has ended and the agent was killed, and is made again after a configuration without auto.
func testDRAAuto(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.waitPublished(t)
	l.waitAllocatableOf(t, map[string]int{gpuResource: nodeGPUs})
	pod := l.run(t, l.onNode(podRequesting("by-plugin", gpuResource, 1)))[0]

	l.setConfigs(t, map[string]string{"default": autoAPI})
	l.other.waitPublished(t, upTo(nodeGPUs)...)
	l.other.waitChoice(t, "through dra: no pod holds a GPU, and the cluster has DeviceClass gpu.berth.dev")
	l.waitChoice(t, "through device-plugin: ")
	if err := l.remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	l.waitNothingHeld(t)
	l.kill(t)
	l.start(t)
	l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs})
	l.waitPublished(t)

	// Each name is served by one API of each node: a pod gets a GPU on both.
	for name, r := range map[string]*rig{"on-plugin": l.rig, "on-dra": l.other} {
		made := podRequesting(name, gpuResource, 1)
		made.Spec.NodeSelector = map[string]string{corev1.LabelHostname: r.node.Name()}
		running := l.run(t, made)[0]
		if claimed := running.Status.ExtendedResourceClaimStatus != nil; claimed != (r == l.other) {
			t.Errorf("pod %s has a claim: %t", name, claimed)
		}
		if err := l.remove(t.Context(), running); err != nil {
			t.Fatal(err)
		}
	}

	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.other.waitPublished(t)
	l.setConfigs(t, map[string]string{"default": autoAPI})
	l.waitPublished(t, upTo(nodeGPUs)...)
	l.other.waitPublished(t, upTo(nodeGPUs)...)
	l.waitKubelet(t, map[string]int{})
}
