package configwatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// world is a node with its sources.
type world struct {
	t     *testing.T
	dir   string
	api   dynamic.Interface
	file  string
	name  string
	fault func(Step) error
	judge Judge
	clock clock.WithTicker
	// given is what flags set; nil for the name of the Node and the persistent directory.
	given func(*v1alpha1.AgentConfig)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.api = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds())
	return w
}

func kinds() map[schema.GroupVersionResource]string {
	return map[schema.GroupVersionResource]string{nodes(): "NodeList", configMaps(): "ConfigMapList"}
}

// write puts the file there.
func (w *world) write(text string) {
	w.t.Helper()
	w.file = filepath.Join(w.dir, "agent.yaml")
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(resource schema.GroupVersionResource, namespace, name string, edit func(*unstructured.Unstructured)) {
	w.t.Helper()
	kind := map[schema.GroupVersionResource]string{nodes(): "Node", configMaps(): "ConfigMap"}[resource]
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}}}
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	edit(object)
	client := dynamic.ResourceInterface(w.api.Resource(resource))
	if namespace != "" {
		client = w.api.Resource(resource).Namespace(namespace)
	}
	_, err := client.Update(w.t.Context(), object, metav1.UpdateOptions{})
	if err != nil {
		_, err = client.Create(w.t.Context(), object, metav1.CreateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) label(labels map[string]string) {
	w.put(nodes(), "", "node-0", func(o *unstructured.Unstructured) { o.SetLabels(labels) })
}

func (w *world) configMap(name string, data map[string]string) {
	w.put(configMaps(), "berth-system", name, func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedStringMap(o.Object, data, "data")
	})
}

func (w *world) open() (*Watcher, error) {
	deps := Deps{
		File: w.file, ConfigMap: w.name, Fault: w.fault, Clock: w.clock,
		Override: func(c *v1alpha1.AgentConfig) { c.NodeName, c.PersistentDir = "node-0", filepath.Join(w.dir, "state") },
	}
	if w.given != nil {
		deps.Override = w.given
	}
	if w.name != "" || w.file == "" {
		deps.Connect = func(*v1alpha1.AgentConfig) (dynamic.Interface, error) { return w.api, nil }
	}
	return Open(deps)
}

// start opens and runs a watcher until the test ends or stop is called.
func (w *world) start() (watcher *Watcher, stop func()) {
	w.t.Helper()
	watcher, err := w.open()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- watcher.Run(ctx, w.judge) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				w.t.Error(err)
			}
		}
	}
	w.t.Cleanup(stop)
	return watcher, stop
}

// await waits until the state is as wanted, with a limit far above the second that it may take.
func (w *world) await(watcher *Watcher, what string, wanted func(State) bool) State {
	w.t.Helper()
	limit := time.After(20 * time.Second)
	changes := watcher.Subscribe()
	defer changes.Close()
	for {
		if state := watcher.Current(); wanted(state) {
			return state
		}
		select {
		case <-limit:
			w.t.Fatalf("never saw %s; the state is %+v with %+v", what, watcher.Current(), watcher.Current().Config)
		case <-changes.C():
		}
	}
}

func named(name string) func(State) bool {
	return func(s State) bool { return s.Config.ResourceName == name && !s.Waiting && s.Refused == nil }
}

func TestFileIsFollowed(t *testing.T) {
	w := newWorld(t)
	w.write("resourceName: nvidia.com/a\nmetricsListen: 127.0.0.1:2\n")
	watcher, stop := w.start()
	if got := watcher.Current(); !named("nvidia.com/a")(got) || got.Source != w.file || !got.MIG.Known {
		t.Fatalf("at the start: %+v", got)
	}
	w.write("resourceName: nvidia.com/b\nmetricsListen: 127.0.0.1:2\n")
	w.await(watcher, "the edit", named("nvidia.com/b"))

	w.write("resourceNam: nvidia.com/c\n")
	state := w.await(watcher, "the refusal", func(s State) bool { return s.Refused != nil })
	if want := "agent.yaml:1: resourceNam: unknown key (did you mean resourceName?)"; !strings.Contains(state.Refused.Error(), want) {
		t.Errorf("refused with %v, want %s", state.Refused, want)
	}
	if state.Config.ResourceName != "nvidia.com/b" {
		t.Errorf("in force is %s, want the last good one", state.Config.ResourceName)
	}

	// A restart with the invalid file: the last valid one is in force, and the refusal is reported.
	stop()
	again, stop := w.start()
	if got := again.Current(); got.Config.ResourceName != "nvidia.com/b" || got.Refused == nil {
		t.Errorf("after a restart: %+v with %+v", got, got.Config)
	}
	// What only a start can change keeps its value and is named.
	w.write("resourceName: nvidia.com/d\nmetricsListen: 127.0.0.1:1\n")
	state = w.await(again, "the repair", named("nvidia.com/d"))
	if diff := cmp.Diff([]string{"metricsListen"}, state.Restart); diff != "" || state.Config.MetricsListen != "127.0.0.1:2" {
		t.Errorf("metricsListen is %s, for the next start (-want +got):\n%s", state.Config.MetricsListen, diff)
	}
	stop()

	if err := os.RemoveAll(filepath.Join(w.dir, "state")); err != nil {
		t.Fatal(err)
	}
	w.write("nothing: good\n")
	if _, err := w.open(); err == nil || !strings.Contains(err.Error(), "nothing: unknown key") {
		t.Errorf("a bad file with nothing kept: %v, want an error", err)
	}
	w.file += ".missing"
	if _, err := w.open(); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("a missing file: %v, want an error that names the flag", err)
	}
}

func TestConfigMapIsChosenByLabel(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	watcher, _ := w.start()
	if !watcher.Current().Waiting {
		t.Fatal("nothing is known yet, and it does not wait")
	}
	w.label(nil)
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/default", "shared": "resourceName: nvidia.com/shared"})
	w.await(watcher, "the key default", named("nvidia.com/default"))
	w.label(map[string]string{LabelNVIDIAConfig: "shared"})
	if state := w.await(watcher, "NVIDIA's label", named("nvidia.com/shared")); state.Source != "berth-system/configs/shared" {
		t.Errorf("source is %s", state.Source)
	}
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/default",
		"shared": "resourceName: nvidia.com/shared2", "mine": "resourceName: nvidia.com/mine"})
	w.await(watcher, "the edit", named("nvidia.com/shared2"))
	w.label(map[string]string{LabelNVIDIAConfig: "shared", LabelConfig: "mine"})
	w.await(watcher, "Berth's label, which wins", named("nvidia.com/mine"))
	w.label(map[string]string{LabelConfig: "mien"})
	state := w.await(watcher, "an unknown key", func(s State) bool { return s.Refused != nil })
	if want := "label berth.dev/config=mien of the node names no key of ConfigMap berth-system/configs (did you mean mine?)"; state.Refused.Error() != want {
		t.Errorf("refused with %v\nwant %s", state.Refused, want)
	}
	if state.Config.ResourceName != "nvidia.com/mine" {
		t.Errorf("in force is %s, want the last good one", state.Config.ResourceName)
	}
	if err := w.api.Resource(configMaps()).Namespace("berth-system").Delete(t.Context(), "configs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	state = w.await(watcher, "that the ConfigMap is gone",
		func(s State) bool { return s.Refused != nil && strings.Contains(s.Refused.Error(), "create it") })
	if state.Config.ResourceName != "nvidia.com/mine" {
		t.Errorf("in force is %s, want the last good one", state.Config.ResourceName)
	}
}

// TestConfigMapIsKept: after a restart, before the API answers, the last one is in force.
func TestConfigMapIsKept(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(nil)
	w.configMap("configs", map[string]string{"only": "resourceName: nvidia.com/only"})
	watcher, stop := w.start()
	w.await(watcher, "the only key", named("nvidia.com/only"))
	stop()
	again, err := w.open() // not run: nothing reads the API
	if err != nil || !named("nvidia.com/only")(again.Current()) {
		t.Errorf("after a restart: %+v, %v", again.Current(), err)
	}
}

func TestMIGLayouts(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(map[string]string{LabelMIG: "two"})
	w.configMap("configs", map[string]string{"default": "migConfigMap: berth-system/layouts"})
	watcher, _ := w.start()
	state := w.await(watcher, "the missing ConfigMap", func(s State) bool { return s.MIG.Err != nil })
	if !strings.Contains(state.MIG.Err.Error(), "ConfigMap berth-system/layouts has no key config.yaml (it does not exist; create it)") {
		t.Errorf("error is %v", state.MIG.Err)
	}
	layout := "version: v1\nmig-configs:\n  two:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 2}\n"
	w.configMap("layouts", map[string]string{"config.yaml": layout})
	state = w.await(watcher, "the layouts", func(s State) bool { return s.MIG.Err == nil && len(s.MIG.Layouts) == 1 })
	if state.MIG.Layout != "two" || state.MIG.Layouts["two"][0].MIGDevices["1g.5gb"] != 2 {
		t.Errorf("MIG is %+v", state.MIG)
	}
	w.configMap("layouts", map[string]string{"config.yaml": "version: v1\nmig-confgs: {}\n"})
	state = w.await(watcher, "the mistake", func(s State) bool { return s.MIG.Err != nil })
	if !strings.Contains(state.MIG.Err.Error(), "mig-configs") || len(state.MIG.Layouts) != 1 {
		t.Errorf("after a mistake: %v, %d layouts; want the fix named and the last layouts kept", state.MIG.Err, len(state.MIG.Layouts))
	}
	w.configMap("configs", map[string]string{"default": "migConfigMap: berth-system/others"})
	w.configMap("others", map[string]string{"config.yaml": strings.ReplaceAll(layout, "two", "three")})
	w.await(watcher, "the other ConfigMap", func(s State) bool { return s.MIG.Err == nil && s.MIG.Layouts["three"] != nil })
}

// TestKilledWhileItChanges: after the agent was killed at any step, the next start has either the old or the new
// configuration, and ends with the new one.
func TestKilledWhileItChanges(t *testing.T) {
	for _, step := range []Step{StepRead, StepKept} {
		t.Run(string(step), func(t *testing.T) {
			w := newWorld(t)
			w.name = "berth-system/configs"
			w.label(nil)
			w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/old"})
			first, stop := w.start()
			w.await(first, "the old one", named("nvidia.com/old"))
			stop()
			reached := make(chan struct{}, 100)
			w.fault = func(at Step) error {
				if at != step {
					return nil
				}
				reached <- struct{}{}
				return errors.New("killed")
			}
			_, stop = w.start()
			w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/new"})
			<-reached
			stop()
			w.fault = nil
			atOnce, err := w.open()
			if err != nil {
				t.Fatal(err)
			}
			want := map[Step]string{StepRead: "nvidia.com/old", StepKept: "nvidia.com/new"}[step]
			if got := atOnce.Current().Config.ResourceName; got != want {
				t.Errorf("the next start begins with %s, want %s", got, want)
			}
			last, _ := w.start()
			w.await(last, "the new one", named("nvidia.com/new"))
		})
	}
}

// TestAConfigMapThatMayNotBeRead: a ConfigMap that may not be read is reported by name until it may be read.
func TestAConfigMapThatMayNotBeRead(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(nil)
	w.configMap("configs", map[string]string{"default": "resourceName: nvidia.com/a\n"})
	var allowed atomic.Bool
	w.api.(*fake.FakeDynamicClient).PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(configMaps().GroupResource(), "", errors.New("forbidden by RBAC"))
	})
	watcher, stop := w.start()
	defer stop()
	state := w.await(watcher, "the refusal", func(s State) bool { return len(s.Forbidden) > 0 })
	if !state.Waiting || len(state.Forbidden) != 1 || !strings.Contains(state.Forbidden[0], "configmaps berth-system/configs: ") {
		t.Errorf("waiting %v, forbidden %q; want nothing in force and the ConfigMap named", state.Waiting, state.Forbidden)
	}
	allowed.Store(true)
	if state := w.await(watcher, "the key", named("nvidia.com/a")); len(state.Forbidden) > 0 {
		t.Errorf("still forbidden: %q", state.Forbidden)
	}
}
