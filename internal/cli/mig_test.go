package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestMIGOfANewNode: a GPUNode that is made between the read of it and that of all is used.
func TestMIGOfANewNode(t *testing.T) {
	node := v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode)}
	node.Name = "node-0"
	node.Status.Devices = []v1alpha1.GPUDevice{{UUID: "GPU-a", Product: "NVIDIA A100", MIGEnabled: true,
		MIGProfiles: []v1alpha1.MIGProfile{{Name: "1g.5gb", ComputeSlices: 1, Size: 1, Starts: []int{0}, Max: 1}}}}
	kubeconfig := serveFleet(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/berth.dev/v1alpha1/gpunodes" {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"})
			return
		}
		_ = json.NewEncoder(w).Encode(v1alpha1.GPUNodeList{TypeMeta: v1alpha1.TypeMeta("GPUNodeList"), Items: []v1alpha1.GPUNode{node}})
	}))
	if text := fleetRun(t, kubeconfig, "mig", "layouts", "node-0"); !strings.Contains(text, "all-1g.5gb") {
		t.Errorf("printed\n%s", text)
	}
}
