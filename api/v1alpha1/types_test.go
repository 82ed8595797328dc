package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
)

func TestSchemeKnowsTheServedKinds(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{KindGPUNode, KindGPUNode + "List"} {
		if !scheme.Recognizes(GroupVersion().WithKind(kind)) {
			t.Errorf("the scheme does not have %s", kind)
		}
	}
}

func TestGPUNodeSurvivesJSONAndCopy(t *testing.T) {
	node := &GPUNode{TypeMeta: TypeMeta(KindGPUNode)}
	node.Name = "node-0"
	node.Status = GPUNodeStatus{
		Summary: GPUSummary{GPUs: 1, Held: 1, Model: "A100"},
		Devices: []GPUDevice{{
			UUID: "GPU-a", NUMANode: -1, Health: DeviceHealth{State: "Healthy"},
			MIGDevices: []MIGDevice{{UUID: "MIG-1", Holders: []Holder{{Kind: "Pod", Pod: "p"}}}},
		}},
		Topology: []string{"X"},
	}
	blob, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	back := &GPUNode{}
	if err := json.Unmarshal(blob, back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(node, back); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	clone := node.DeepCopy()
	clone.Status.Devices[0].MIGDevices[0].Holders[0].Pod = "other"
	if node.Status.Devices[0].MIGDevices[0].Holders[0].Pod != "p" {
		t.Error("a change of the copy reaches the original")
	}
}
