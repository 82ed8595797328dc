package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
)

// fakeAPI is an API server with one Node; while away is set it does not respond.
func fakeAPI(away bool, labels map[string]string) *fake.FakeDynamicClient {
	node := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-0", "uid": "uid-0"},
	}}
	node.SetLabels(labels)
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "nodes"}:      "NodeList",
		{Version: "v1", Resource: "configmaps"}: "ConfigMapList",
		{Version: "v1", Resource: "pods"}:       "PodList",
		v1alpha1.GPUNodes():                     "GPUNodeList",
	}, node)
	if away {
		api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API server does not respond")
		})
		api.PrependWatchReactor("*", clienttesting.DefaultWatchReactor(nil, errors.New("the API server does not respond")))
	}
	return api
}

// TestBootWithoutAPI: Hopper GPUs lose their MIG mode at a boot. While the API does not respond, the last known label
// applies: no GPU is advertised whole, and the layout is created again.
func TestBootWithoutAPI(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "h100x8")
	b.override = func(c *v1alpha1.AgentConfig) {
		c.Standalone, c.NodeName, c.Labels.Output = false, "node-0", v1alpha1.LabelsNone
	}
	b.client = fakeAPI(false, map[string]string{configwatch.LabelMIG: "all-3g.40gb"})
	agent, end := b.startUntil()
	b.agent = agent
	b.awaitOf("nvidia.com/mig-3g.40gb", healthy(16))
	end()

	if err := errors.Join(b.machine.Reboot(), os.RemoveAll(filepath.Join(b.dir, "state"))); err != nil {
		t.Fatal(err)
	}
	b.kubelet.Stop()
	if err := os.RemoveAll(b.kubeletDir()); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.kubelet, err = fakekubelet.Start(b.kubeletDir(), fakekubelet.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kubelet.Stop)
	b.client, b.boot = fakeAPI(true, nil), "the second boot"
	b.agent = b.start()
	b.awaitOf("nvidia.com/mig-3g.40gb", healthy(16))
	if whole := b.kubelet.State("nvidia.com/gpu"); whole.Accepted > 0 {
		t.Errorf("GPUs were advertised whole: %d registrations", whole.Accepted)
	}
}
