package agent

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const autoConfig = "gpus: [{allocation: {api: auto}}]\n"

// wholeClass is the DeviceClass for whole GPUs.
func wholeClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: pool.DefaultDriver}}
}

// byDRA returns how many GPUs are allocated through DRA.
func (b *claimBench) byDRA() int {
	n := 0
	for _, unit := range b.agent.devices.allocatable.Units() {
		if unit.Use.API == offer.DRA {
			n++
		}
	}
	return n
}

// advertises returns how many devices the device plugin lists.
func (b *claimBench) advertises() int {
	n := 0
	for _, o := range b.agent.offers() {
		n += len(o.Devices)
	}
	return n
}

// TestAutoChoosesDRA: an empty node of a cluster with the DeviceClass allocates through DRA, and still does after the class is gone.
func TestAutoChoosesDRA(t *testing.T) {
	t.Parallel()
	b := newIdleClaimBench(t, "h100x8", pool.DefaultDriver, wholeClass())
	b.configure(autoConfig)
	for range 2 {
		b.begin()
		b.until("8 GPUs are allocated through DRA and none is advertised", func() bool { return b.byDRA() == 8 && b.advertises() == 0 })
		b.end()
		if err := b.clients.ResourceV1().DeviceClasses().Delete(t.Context(), pool.DefaultDriver, metav1.DeleteOptions{}); err != nil {
			break // The second time.
		}
	}
}

// TestAutoKeepsTheDevicePlugin: a node on which a pod holds a GPU stays with the device plugin, also when the pod has ended and over a
// restart, until the rule is changed.
func TestAutoKeepsTheDevicePlugin(t *testing.T) {
	t.Parallel()
	b := newIdleClaimBench(t, "h100x8", pool.DefaultDriver, wholeClass())
	b.configure("")
	b.agent, b.end = b.startUntil()
	b.await(healthy(8))
	if _, err := b.kubelet.Allocate(t.Context(), resource, []string{string(b.uuid(0))}); err != nil {
		t.Fatal(err)
	}
	b.configure(autoConfig)
	b.until("the API is chosen", func() bool { _, known := b.agent.devices.choice.API(); return known })
	for range 2 {
		b.await(healthy(8))
		if api, _ := b.agent.devices.choice.API(); api != offer.DevicePlugin || b.byDRA() > 0 {
			t.Fatalf("the choice is %q, and %d GPUs are allocated through DRA; a pod of the device plugin has a GPU", api, b.byDRA())
		}
		b.end()
		b.agent, b.end = b.startUntil()
	}
	b.configure("kind: AgentConfig\n")
	b.until("the choice is ended", func() bool { _, known := b.agent.devices.choice.API(); return !known })
	b.await(healthy(8))
	b.end()
}
