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

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// TestSandboxOptions checks a sandbox whose nodes have different hardware, each with an agent of its own, and whose API
// server has a feature gate off and another API version on.
func TestSandboxOptions(t *testing.T) {
	const version = "resource.k8s.io/v1beta2"
	c := ownCluster(t, sandbox.Options{
		Nodes: 2, Profile: "a100x8-40g", NodeProfiles: map[string]string{"node-1": "h100x8"},
		FeatureGates: map[string]bool{"DRAPartitionableDevices": false}, RuntimeConfig: map[string]string{version: "true"},
	})
	for _, node := range c.Nodes() {
		waitUntil(t, 15*time.Second, "the kubelet of "+node.Name()+" has the GPUs of its own machine", func(ctx context.Context) error {
			devices, err := kubelet.NewPodResources(node.KubeletDir()).Allocatable(ctx)
			if err != nil {
				return err
			}
			for _, gpuInfo := range hardware(t, node.SimDir()).GPUs {
				if !offered(devices, gpuInfo.UUID) {
					return fmt.Errorf("it has no %s of %s", gpuInfo.UUID, gpuInfo.Product)
				}
			}
			return nil
		})
		agents, err := node.Agents(t.Context())
		if err != nil || len(agents) != 1 {
			t.Errorf("%s runs the agents %v (%v), want one", node.Name(), agents, err)
		}
	}
	if a, b := hardware(t, c.Nodes()[0].SimDir()).GPUs[0].Product, hardware(t, c.Nodes()[1].SimDir()).GPUs[0].Product; a == b {
		t.Errorf("both nodes have %s", a)
	}
	groups, err := c.Client().Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(metav1.ExtractGroupVersions(groups), func(served string) bool { return served == version }) {
		t.Errorf("the API server does not serve %s", version)
	}
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "with-counters"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "example.com", NodeName: new("node-0"), Pool: resourceapi.ResourcePool{Name: "node-0", ResourceSliceCount: 1},
			SharedCounters: []resourceapi.CounterSet{{Name: "set", Counters: map[string]resourceapi.Counter{"a": {Value: resource.MustParse("1")}}}},
		},
	}
	made, err := c.Client().ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Spec.SharedCounters) > 0 {
		t.Error("the API server keeps shared counters, although the feature gate is off")
	}
}
