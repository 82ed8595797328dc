package evidence

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// TestShown checks which holders of a node are added, about whom the user's rights are asked, and whether the node counts as one of which
// holders were left out.
func TestShown(t *testing.T) {
	node := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Devices = []v1alpha1.GPUDevice{
		{UUID: "GPU-a", Holders: []v1alpha1.Holder{{Kind: "Pod", Namespace: "mine", Pod: "a", PodUID: "a"}}},
		{UUID: "GPU-b", MIGDevices: []v1alpha1.MIGDevice{{UUID: "MIG-b", Holders: []v1alpha1.Holder{{Kind: "Pod", Namespace: "theirs", Pod: "b", PodUID: "b"}}}}},
	}
	tests := map[string]struct {
		device   gpu.UUID
		all      bool
		pods     int
		unread   int
		withheld int
		asked    string
	}{
		"one of its GPUs":             {device: "GPU-a", pods: 1, unread: 1, withheld: 1, asked: "[mine theirs]"},
		"one of its MIG devices":      {device: "MIG-", pods: 1, unread: 1, withheld: 1, asked: "[mine theirs]"},
		"a device of another node":    {device: "GPU-c", withheld: 1, asked: "[]"},
		"any device":                  {pods: 1, unread: 1, withheld: 1, asked: "[mine theirs]"},
		"any device, with all rights": {all: true, pods: 2, asked: "[mine theirs]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			asked, e := []string{}, &trace.Evidence{}
			API{Shows: func(namespace string) bool {
				asked = append(asked, namespace)
				return tc.all || namespace == "mine"
			}}.addGPUNode(e, node, tc.device)
			if len(e.Pods) != tc.pods || len(e.Unread) != tc.unread || len(e.Withheld) != tc.withheld || fmt.Sprint(asked) != tc.asked {
				t.Errorf("%d pods, unread %v, withheld %v, asked %v", len(e.Pods), e.Unread, e.Withheld, asked)
			}
			if len(e.Devices) != 3 || len(node.Status.Devices[0].Holders) != 1 {
				t.Errorf("%d devices; the object was changed: %v", len(e.Devices), node.Status.Devices[0].Holders)
			}
		})
	}
}
