package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	// gateCounters is the feature gate without which the API server drops the counters of dynamic GPUs.
	gateCounters = "DRAPartitionableDevices"
	// moreVersion is a version of the API that is off by default.
	moreVersion = "resource.k8s.io/v1beta2"
	// allDynamic allocates every GPU through DRA, with MIG devices on demand.
	allDynamic = plainConfig + `gpus:
- select: {}
  allocation: {api: dra}
  dynamicMIG: true
`
)

// TestDRAGatesOff checks an agent whose API server has a feature gate of DRA off, on nodes with different hardware.
func TestDRAGatesOff(t *testing.T) {
	onOwnCluster(t, 2)
	l := newDRALab(t, sandbox.Options{
		FeatureGates: map[string]bool{gateCounters: false}, RuntimeConfig: map[string]string{moreVersion: "true"},
	})
	for _, r := range []*rig{l.rig, l.other} {
		t.Run("Hardware/"+r.node.Name(), r.testOwnHardware)
	}
	if a, b := hardware(t, l.node.SimDir()).GPUs[0].Product, hardware(t, l.other.node.SimDir()).GPUs[0].Product; a == b {
		t.Errorf("both nodes have %s", a)
	}
	t.Run("APIServer", func(t *testing.T) { testOptionsOfAPIServer(t, l.Cluster) })
	t.Run("WholeGPUs", func(t *testing.T) { testWholeWithoutCounters(t, l) })
}

// testOwnHardware checks that the node has one agent, which advertises the GPUs of the node's own machine.
func (r *rig) testOwnHardware(t *testing.T) {
	waitUntil(t, 15*time.Second, "the kubelet of "+r.node.Name()+" has the GPUs of its own machine", func(ctx context.Context) error {
		devices, err := kubelet.NewPodResources(r.node.KubeletDir()).Allocatable(ctx)
		if err != nil {
			return err
		}
		for _, gpuInfo := range hardware(t, r.node.SimDir()).GPUs {
			if !offered(devices, gpuInfo.UUID) {
				return fmt.Errorf("it has no %s of %s", gpuInfo.UUID, gpuInfo.Product)
			}
		}
		return nil
	})
	agents, err := r.node.Agents(t.Context())
	if err != nil || len(agents) != 1 {
		t.Errorf("%s runs the agents %v (%v), want one", r.node.Name(), agents, err)
	}
}

// testOptionsOfAPIServer checks that the API server serves another version, and drops counters.
func testOptionsOfAPIServer(t *testing.T, c *sandbox.Cluster) {
	groups, err := c.Client().Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(metav1.ExtractGroupVersions(groups), func(served string) bool { return served == moreVersion }) {
		t.Errorf("the API server does not serve %s", moreVersion)
	}
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "with-counters"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "example.com", NodeName: new("node-0"), Pool: resourceapi.ResourcePool{Name: "node-0", ResourceSliceCount: 1},
			SharedCounters: []resourceapi.CounterSet{{Name: "set", Counters: map[string]resourceapi.Counter{"a": {Value: resource.MustParse("1")}}}},
		},
	}
	client := c.Client().ResourceV1().ResourceSlices()
	made, err := client.Create(t.Context(), slice, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Spec.SharedCounters) > 0 {
		t.Error("the API server keeps shared counters, although the feature gate is off")
	}
	if err := client.Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testWholeWithoutCounters gives dynamic GPUs to DRA: the agent sees that the API server drops their counters, says so, and publishes
// them whole. A claim for a GPU gets one, and a claim for a MIG device waits.
func testWholeWithoutCounters(t *testing.T, l *draLab) {
	const code = "DRA_FEATURE_DISABLED"
	sentence := []string{"has dropped fields of the ResourceSlices", "enable the feature gates " + gateCounters}
	start := l.setConfigs(t, map[string]string{"default": allDynamic})
	published := l.waitPublished(t, upTo(8)...) // With MIG devices they are 208.
	t.Logf("the node has published its 8 GPUs whole %s after the edit", ms(published.Sub(start)))
	l.waitProblem(t, code, true)
	waitUntil(t, 20*time.Second, "the GPUNode names the feature gate and the fix", func(ctx context.Context) error {
		node, err := l.gpuNode(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Status.Problems, func(c v1alpha1.Cause) bool { return c.Code == code && hasAll(c.Message, sentence) }) {
			return fmt.Errorf("its problems are %+v", node.Status.Problems)
		}
		return nil
	})
	l.checkFinding(t, code, sentence...)
	l.waitProblem(t, "DRA_PUBLISH_FAILED", false)

	l.claim(t, claimOf("whole", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))), claimOf("part", migRequest("gpu", "1g.10gb", 1)))
	l.checkClaimed(t, l.run(t, podUsing("whole", "whole"))[0], 1)
	part := podUsing("part", "part")
	t.Cleanup(func() { l.cleanUp(t, part) })
	if _, err := l.CreatePod(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	l.waitPending(t, part)
	l.checkNoConflict(t)
}
