package configwatch

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestStaticSettingsOfConfigMap checks when the settings of a ConfigMap that only a start can change take effect.
func TestStaticSettingsOfConfigMap(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(nil)
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/a\ndcgmNames: true\n"})
	check := func(what string, s State, names bool, restart ...string) {
		t.Helper()
		if s.Config.DCGMNames != names || !slices.Equal(s.Restart, restart) {
			t.Errorf("%s: dcgmNames %v, for the next start %v; want %v, %v", what, s.Config.DCGMNames, s.Restart, names, restart)
		}
	}
	// The first start of the node asks the API.
	watcher, stop := w.start()
	if !watcher.Base().DCGMNames {
		t.Error("the first start does not have the setting of the ConfigMap")
	}
	check("the first start", w.await(watcher, "the ConfigMap", named("nvidia.com/a")), true)

	// A setting that is changed or removed waits for the next start.
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/b\nsampleInterval: 3s\n"})
	check("after a change", w.await(watcher, "the change", named("nvidia.com/b")), true, "sampleInterval", "dcgmNames")
	stop()
	again, stop := w.start()
	if base := again.Base(); base.DCGMNames || base.SampleInterval.Duration.Seconds() != 3 {
		t.Errorf("after a restart: dcgmNames %v, sampleInterval %v", base.DCGMNames, base.SampleInterval)
	}
	check("after a restart", w.await(again, "the change", named("nvidia.com/b")), false)

	// Back to where the agent is, nothing waits.
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/c\nsampleInterval: 4s\n"})
	check("changed again", w.await(again, "the change", named("nvidia.com/c")), false, "sampleInterval")
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/d\nsampleInterval: 3s\n"})
	check("changed back", w.await(again, "the change back", named("nvidia.com/d")), false)
	stop()
}

// TestOwnSettings checks that a ConfigMap does not give the agent another Node or persistent directory, and that neither waits for a
// restart.
func TestOwnSettings(t *testing.T) {
	tests := map[string]struct {
		given     func(*world) func(*v1alpha1.AgentConfig)
		configMap string
	}{
		"another directory than that of a flag": {
			func(w *world) func(*v1alpha1.AgentConfig) {
				return func(c *v1alpha1.AgentConfig) { c.NodeName, c.PersistentDir = "node-0", filepath.Join(w.dir, "state") }
			}, "persistentDir: /elsewhere\n",
		},
		"another directory than the default": {
			func(w *world) func(*v1alpha1.AgentConfig) {
				return func(c *v1alpha1.AgentConfig) {
					c.PersistentDir = cmp.Or(c.PersistentDir, filepath.Join(w.dir, "state"))
				}
			}, "persistentDir: /elsewhere\n",
		},
		"another Node than that of the file": {
			func(w *world) func(*v1alpha1.AgentConfig) {
				return func(c *v1alpha1.AgentConfig) { c.PersistentDir = filepath.Join(w.dir, "state") }
			}, "nodeName: other\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.write("nodeName: node-0\n")
			w.name, w.given = "berth-system/configs", tc.given(w)
			w.label(nil)
			w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/a\n" + tc.configMap})
			watcher, stop := w.start()
			s := w.await(watcher, "the ConfigMap", named("nvidia.com/a"))
			if base := watcher.Base(); base.NodeName != "node-0" || base.PersistentDir != filepath.Join(w.dir, "state") || len(s.Restart) > 0 {
				t.Errorf("nodeName %q, persistentDir %q, for the next start %v", base.NodeName, base.PersistentDir, s.Restart)
			}
			stop()
		})
	}
}

// TestFirstStartWithoutAPI checks that the first start goes on with the given settings when the API does not answer, or has an invalid
// configuration.
func TestFirstStartWithoutAPI(t *testing.T) {
	tests := map[string]func(*world, *fake.FakeDynamicClient){
		"the API is away": func(_ *world, api *fake.FakeDynamicClient) {
			api.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("connection refused")
			})
		},
		"no ConfigMap": func(*world, *fake.FakeDynamicClient) {},
		"an invalid one": func(w *world, _ *fake.FakeDynamicClient) {
			w.configMap("configs", map[string]string{"default": "dcgmName: true\n"})
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.name = "berth-system/configs"
			w.label(nil)
			change(w, w.api.(*fake.FakeDynamicClient))
			watcher, stop := w.start()
			if got := watcher.Current(); got.Config.DCGMNames || got.Config.ResourceName != "nvidia.com/gpu" {
				t.Errorf("in force: %+v", got.Config)
			}
			stop()
		})
	}
}
