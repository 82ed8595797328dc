package configwatch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestNoKeyKeepsTheLastGoodConfiguration checks that, once a key of the ConfigMap was in force, a ConfigMap that names
// none is refused, also after a restart. The label's value "default" selects the defaults.
func TestNoKeyKeepsTheLastGoodConfiguration(t *testing.T) {
	tests := map[string]struct {
		change func(*world)
		want   string
	}{
		"deleted": {func(w *world) {
			if err := w.api.Resource(configMaps()).Namespace("berth-system").Delete(w.t.Context(), "configs",
				metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}, "does not exist"},
		"emptied":      {func(w *world) { w.configMap("configs", nil) }, "has no keys"},
		"several keys": {func(w *world) { w.configMap("configs", map[string]string{"a": "", "b": ""}) }, "has the keys a, b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.name = "berth-system/configs"
			w.label(nil)
			w.configMap("configs", map[string]string{"only": "resourceName: nvidia.com/only"})
			watcher, stop := w.start()
			w.await(watcher, "the only key", named("nvidia.com/only"))
			tc.change(w)
			refused := func(s State) bool { return s.Refused != nil && strings.Contains(s.Refused.Error(), tc.want) }
			state := w.await(watcher, "the refusal", func(s State) bool { return refused(s) || s.Config.ResourceName != "nvidia.com/only" })
			if !refused(state) || state.Config.ResourceName != "nvidia.com/only" || state.Source != "berth-system/configs/only" {
				t.Fatalf("refused with %v, in force is %s of %q; want the last good one", state.Refused,
					state.Config.ResourceName, state.Source)
			}
			stop()
			again, stop := w.start()
			if state := w.await(again, "the refusal after a restart", refused); state.Config.ResourceName != "nvidia.com/only" {
				t.Errorf("after a restart %s is in force", state.Config.ResourceName)
			}
			w.label(map[string]string{LabelConfig: "default"})
			w.await(again, "the defaults, which the label selects", named("nvidia.com/gpu"))
			w.label(nil)
			stop()
			last, _ := w.start()
			w.await(last, "the defaults: no key is in force any more", named("nvidia.com/gpu"))
		})
	}
}

// TestStartWithoutConfigMapForgetsIt checks that an agent started without --config-map uses its defaults from then on.
func TestStartWithoutConfigMapForgetsIt(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(nil)
	w.configMap("configs", map[string]string{"only": "resourceName: nvidia.com/only"})
	watcher, stop := w.start()
	w.await(watcher, "the only key", named("nvidia.com/only"))
	stop()
	w.name = ""
	watcher, stop = w.start()
	w.await(watcher, "the defaults", named("nvidia.com/gpu"))
	stop()
	w.configMap("configs", nil)
	w.name = "berth-system/configs"
	watcher, _ = w.start()
	w.await(watcher, "the defaults: no key was in force since", named("nvidia.com/gpu"))
}

const twoLayout = "version: v1\nmig-configs:\n  two:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 2}\n"

// TestLayoutsOutliveARestart checks that a ConfigMap of layouts that is invalid when the agent starts leaves the last
// valid ones in force; without any, State reports that no layout is known.
func TestLayoutsOutliveARestart(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(map[string]string{LabelMIG: "two"})
	w.configMap("configs", map[string]string{"default": "migConfigMap: berth-system/layouts"})
	w.configMap("layouts", map[string]string{"config.yaml": "version: v1\nmig-confgs: {}\n"})
	watcher, stop := w.start()
	state := w.await(watcher, "the mistake", func(s State) bool { return s.MIG.Err != nil })
	if !state.MIG.Unread || state.MIG.Layouts != nil {
		t.Errorf("never read: %+v, want it reported", state.MIG)
	}
	w.configMap("layouts", map[string]string{"config.yaml": twoLayout})
	state = w.await(watcher, "the layouts", func(s State) bool { return s.MIG.Err == nil && len(s.MIG.Layouts) == 1 })
	if state.MIG.Unread {
		t.Error("the layouts were read and count as unread")
	}
	w.configMap("layouts", map[string]string{"config.yaml": "version: v1\nmig-confgs: {}\n"})
	w.await(watcher, "the mistake", func(s State) bool { return s.MIG.Err != nil })
	stop()
	again, _ := w.start()
	state = w.await(again, "the mistake after a restart", func(s State) bool { return s.MIG.Err != nil })
	if state.MIG.Unread || len(state.MIG.Layouts["two"]) != 1 {
		t.Errorf("after a restart: %+v, want the last good layouts", state.MIG)
	}
}

// away makes every request to the API fail until the test ends.
func (w *world) away() {
	w.api.(*fake.FakeDynamicClient).PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
}

// own labels the node, which has a UID.
func (w *world) own(uid types.UID, labels map[string]string) {
	w.put(nodes(), "", "node-0", func(o *unstructured.Unstructured) {
		o.SetUID(uid)
		o.SetLabels(labels)
	})
}

// TestLabelsOutliveABoot: without the API, the last known labels and layouts apply after AnswerTimeout and not before,
// because the API's are newer.
func TestLabelsOutliveABoot(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.own("uid-1", map[string]string{LabelMIG: "two"})
	w.configMap("configs", map[string]string{"default": "migConfigMap: berth-system/layouts"})
	w.configMap("layouts", map[string]string{"config.yaml": twoLayout})
	watcher, stop := w.start()
	w.await(watcher, "the layouts", func(s State) bool { return s.MIG.Known && s.MIG.Layouts["two"] != nil })
	if watcher.NodeUID() != "uid-1" {
		t.Errorf("the node's UID is %q", watcher.NodeUID())
	}
	stop()

	live := w.api
	w.api = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds())
	w.away()
	clock := testingclock.NewFakeClock(time.Unix(0, 0))
	w.clock = clock
	again, stop := w.start()
	if mig := again.Current().MIG; mig.Known || !mig.Remembered {
		t.Errorf("at the start: %+v; want a label that is remembered and does not apply yet", mig)
	}
	awaitWaiters(t, clock)
	clock.Step(AnswerTimeout)
	state := w.await(again, "the label of before", func(s State) bool { return s.MIG.Known })
	if state.MIG.Layout != "two" || len(state.MIG.Layouts["two"]) != 1 || state.MIG.Remembered {
		t.Errorf("without the API: %+v, want layout two", state.MIG)
	}
	stop()

	// Another Node: the state of the previous one is discarded as soon as that is known.
	w.api, w.clock = live, nil
	w.own("uid-2", nil)
	w.configMap("configs", map[string]string{"default": "migConfigMap: berth-system/layouts\nresourceName: nvidia.com/other\n"})
	other, stop := w.start()
	if state := w.await(other, "the other Node", func(s State) bool { return s.MIG.Known }); state.MIG.Layout != "" {
		t.Errorf("the other Node has the layout %q", state.MIG.Layout)
	}
	w.await(other, "the key of the other Node", named("nvidia.com/other")) // The Node and the ConfigMaps are read in any order.
	w.configMap("configs", nil)
	w.await(other, "a refusal: a key was in force on the other Node too", func(s State) bool { return s.Refused != nil })
	stop()
	w.own("uid-3", nil)
	last, _ := w.start()
	w.await(last, "the defaults: on the third Node no key was ever in force", named("nvidia.com/gpu"))
}

// awaitWaiters waits until a goroutine waits for the clock.
func awaitWaiters(t *testing.T, clock *testingclock.FakeClock) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !clock.HasWaiters(); {
		if time.Now().After(limit) {
			t.Fatal("no goroutine waits")
		}
		<-time.After(time.Millisecond)
	}
}

// TestReadersNeverWaitForTheDisk checks that the state can be read while a new configuration is being written.
func TestReadersNeverWaitForTheDisk(t *testing.T) {
	w := newWorld(t)
	w.write("resourceName: nvidia.com/a\n")
	hangs, release := make(chan struct{}), make(chan struct{})
	w.fault = func(at Step) error {
		if at == StepRead {
			close(hangs)
			<-release
		}
		return nil
	}
	watcher, _ := w.start()
	w.write("resourceName: nvidia.com/b\n")
	<-hangs
	read := make(chan State, 1)
	go func() { read <- watcher.Current() }()
	select {
	case state := <-read:
		if state.Config.ResourceName != "nvidia.com/a" {
			t.Errorf("in force is %s before it is on disk", state.Config.ResourceName)
		}
	case <-time.After(10 * time.Second):
		t.Error("a reader waits for the disk")
	}
	close(release)
	w.await(watcher, "the edit", named("nvidia.com/b"))
}

// judge refuses configurations with a resource name when the hardware is known.
type judge struct {
	mu      sync.Mutex
	known   bool
	refuse  string
	changed chan struct{}
}

func (j *judge) Changed() <-chan struct{} { return j.changed }

func (j *judge) Refuse(_, next *v1alpha1.AgentConfig) (error, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if next.ResourceName == j.refuse {
		return errors.New("GPU 0 would be refused"), j.known
	}
	return nil, j.known
}

func (j *judge) look(known bool, refuse string) {
	j.mu.Lock()
	j.known, j.refuse = known, refuse
	j.mu.Unlock()
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// TestHardwareRefusesAFile checks that a file that the hardware does not support is not in force, and that the last
// valid one is while the hardware is not known, also after a restart.
func TestHardwareRefusesAFile(t *testing.T) {
	w := newWorld(t)
	w.write("resourceName: nvidia.com/a\n")
	hardware := &judge{known: true, refuse: "nvidia.com/b", changed: make(chan struct{}, 1)}
	w.judge = hardware
	watcher, stop := w.start()
	w.write("resourceName: nvidia.com/b\n")
	state := w.await(watcher, "the refusal", func(s State) bool { return s.Refused != nil })
	if want := w.file + ": GPU 0 would be refused"; state.Refused.Error() != want || state.Config.ResourceName != "nvidia.com/a" {
		t.Errorf("refused with %v, in force is %s; want %s and the last good one", state.Refused, state.Config.ResourceName, want)
	}
	stop()
	hardware.look(false, "nvidia.com/b")
	again, _ := w.start()
	if state := again.Current(); state.Config.ResourceName != "nvidia.com/a" {
		t.Errorf("before the first scan %s is in force", state.Config.ResourceName)
	}
	hardware.look(true, "nvidia.com/b")
	w.await(again, "the refusal", func(s State) bool { return s.Refused != nil && s.Config.ResourceName == "nvidia.com/a" })
	hardware.look(true, "") // Other GPUs.
	w.await(again, "the file, which these support", named("nvidia.com/b"))
}

// TestVersionFollowsChanges checks that other hardware that does not affect the configuration results in no new state,
// and that the version of each new state is higher than the last, so that readers who compare versions and pointers see
// every change and no other.
func TestVersionFollowsChanges(t *testing.T) {
	w := newWorld(t)
	w.write("resourceName: nvidia.com/a\n")
	hardware := &judge{known: true, changed: make(chan struct{}, 1)}
	w.judge = hardware
	watcher, _ := w.start()
	for _, name := range []string{"nvidia.com/b", "nvidia.com/c"} {
		before := watcher.Current().Version
		w.write("resourceName: " + name + "\n")
		state := w.await(watcher, name, named(name))
		if state.Version <= before {
			t.Errorf("%s has version %d, and the configuration before it %d", name, state.Version, before)
		}
		changes := watcher.Subscribe()
		<-changes.C() // It is signalled at first.
		for range 3 {
			hardware.look(true, "")
			time.Sleep(20 * time.Millisecond)
		}
		select {
		case <-changes.C():
			t.Errorf("%s: other hardware changes the configuration", name)
		default:
		}
		changes.Close()
		if now := watcher.Current(); now.Version != state.Version || now.Config != state.Config {
			t.Errorf("%s: other hardware makes version %d of %d, another object: %v", name, now.Version, state.Version, now.Config != state.Config)
		}
	}
}

// TestLostConfigurationIsReported damages the last valid configuration: neither the defaults nor another configuration
// may replace it without a report.
func TestLostConfigurationIsReported(t *testing.T) {
	w := newWorld(t)
	w.name = "berth-system/configs"
	w.label(nil)
	w.configMap("configs", map[string]string{"only": "resourceName: nvidia.com/only"})
	watcher, stop := w.start()
	w.await(watcher, "the only key", named("nvidia.com/only"))
	stop()
	if err := os.WriteFile(filepath.Join(w.dir, "state", KeptFile), []byte(`{"format":`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.configMap("configs", map[string]string{"a": "resourceName: nvidia.com/a", "b": ""})
	again, _ := w.start()
	state := w.await(again, "the refusal", func(s State) bool { return s.Refused != nil })
	if !state.Waiting || len(state.Lost) != 1 || state.Lost[0].Code != "STATE_DAMAGED" {
		t.Errorf("waiting %v, lost %v; want nothing in force and the damage named", state.Waiting, state.Lost)
	}
	w.label(map[string]string{LabelConfig: "a"})
	if state := w.await(again, "the key", named("nvidia.com/a")); len(state.Lost) > 0 {
		t.Errorf("still lost: %v", state.Lost)
	}
}
