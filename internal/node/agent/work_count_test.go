package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// work counts what the actors of an agent do.
type work struct {
	b      *bench
	api    *fakeapi.Server
	mu     sync.Mutex
	counts map[string]int
}

// countWork counts the work of the agent that is started next.
func countWork(b *bench) *work {
	w := &work{b: b, api: fakeapi.New(b.t), counts: map[string]int{}}
	b.client = w.api
	b.override = func(c *v1alpha1.AgentConfig) {
		c.Standalone, c.NodeName = false, fakeapi.NodeName
		c.PollInterval.Duration = time.Minute // A regular scan is no event.
		if b.file != "" {
			c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}
		}
	}
	names := map[string]string{string(allocatable.StepSettle): "allocatable", string(allocatable.StepKept): "units kept", string(timeslice.Begun): "timeslice"}
	b.fault = func(step string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if name := names[step]; name != "" {
			step = name
		}
		w.counts[step]++
		return nil
	}
	return w
}

// specWrites counts the writes of the CDI spec until the test ends.
func (w *work) specWrites() {
	dir := filepath.Join(w.b.dir, "cdi")
	// The agent may not have written its first spec yet.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.b.t.Fatal(err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(dir)
	}
	if err != nil {
		w.b.t.Fatal(err)
	}
	w.b.t.Cleanup(func() { watcher.Close() })
	go func() {
		for event := range watcher.Events {
			if event.Has(fsnotify.Create) && filepath.Base(event.Name) == cdi.FileName {
				w.mu.Lock()
				w.counts["CDI spec"]++
				w.mu.Unlock()
			}
		}
	}()
}

// of returns what is done for an event: of each actor how often it works, and the writes to the API server.
func (w *work) of(do func()) map[string]int {
	read := func() map[string]int {
		w.mu.Lock()
		defer w.mu.Unlock()
		counts := maps.Clone(w.counts)
		counts["migsync"] = int(w.b.agent.changes.mig.Computed())
		for _, action := range w.api.Actions() {
			if verb := action.GetVerb(); !slices.Contains([]string{"get", "list", "watch"}, verb) {
				counts[strings.TrimSuffix("write of "+action.GetResource().Resource+"/"+action.GetSubresource(), "/")]++
			}
		}
		return counts
	}
	before := read()
	do()
	time.Sleep(1500 * time.Millisecond) // Work too much would be done now; a second write of the GPUNode comes after a second.
	after := read()
	did := map[string]int{}
	for name, count := range after {
		if count > before[name] {
			did[name] = count - before[name]
		}
	}
	return did
}

// TestWorkPerEvent: an event makes each actor that it concerns work once, and the others not at all.
func TestWorkPerEvent(t *testing.T) {
	b := newIdleBench(t, "a100x8-40g")
	w := countWork(b)
	shared := func(replicas int) string {
		return fmt.Sprintf("gpus:\n- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: %d, timeSlice: short, resourceName: nvidia.com/gpu.shared}}\n", replicas)
	}
	const layout = "- {select: {index: [3]}, mig: {devices: {3g.20gb: 2}}}\n"
	b.configure(shared(2))
	b.agent = b.start()
	b.awaitOf("nvidia.com/gpu.shared", healthy(2))
	b.await(healthy(7))
	b.awaitSlice(1, "Short")
	w.specWrites()
	time.Sleep(3 * time.Second) // The start is over.
	tests := []struct {
		event string
		do    func()
		want  map[string]int
	}{
		{"nothing", func() {}, map[string]int{}},
		{"an Allocate", func() {
			if _, err := b.kubelet.Allocate(t.Context(), resource, []string{string(b.uuid(0))}); err != nil {
				t.Fatal(err)
			}
		}, map[string]int{"gpunodesync": 1}},
		{"an edit of one rule", func() {
			b.configure(shared(3))
			b.awaitOf("nvidia.com/gpu.shared", healthy(3))
		}, map[string]int{
			"allocatable": 1, "units kept": 1, "deviceplugin": 1, "cdisync": 1, "migsync": 1, "timeslice": 1,
			"gpunodesync": 1, "labelsync": 1, "write of gpunodes": 1,
		}},
		{"a fault of one GPU", func() {
			if err := b.machine.Inject(sim.Fault{GPU: "5", XID: 79}); err != nil {
				t.Fatal(err)
			}
			b.await(healthy(6))
		}, map[string]int{
			"allocatable": 1, "deviceplugin": 1, "cdisync": 1, "migsync": 1, "timeslice": 1, "healthsync": 1, "gpunodesync": 1, "labelsync": 1,
			"write of events": 1, "write of gpunodes": 1, "write of nodes": 1, "write of nodes/status": 1,
		}},
	}
	for _, tc := range tests {
		if diff := cmp.Diff(tc.want, w.of(tc.do)); diff != "" {
			t.Errorf("the work for %s (-want +got):\n%s", tc.event, diff)
		}
	}
	// A MIG layout is several events: the edit, which withholds the GPU; the new mode; the new instances. Each actor works once for
	// the change of the hardware and once for the use that follows, the device plugin also for the ledger's maintenance and for what can
	// be injected. The API is written to once per second and object, so that the bound of these grows with the time that the change takes.
	const events = 3
	began := time.Now()
	did := w.of(func() {
		b.configure(shared(3) + layout)
		b.awaitOf("nvidia.com/mig-3g.20gb", healthy(2))
	})
	writes := 1 + int(time.Since(began)/time.Second)
	most := map[string]int{
		"allocatable": 2 * events, "units kept": events, "deviceplugin": 4 * events, "cdisync": 2 * events, "CDI spec": events, "migsync": events + 1,
		"timeslice": 3 * events, "healthsync": events, "gpunodesync": events + 1, "labelsync": events + 1,
		"write of events": events, "write of gpunodes": writes, "write of nodes": writes, "write of nodes/status": writes,
	}
	for name, count := range did {
		if count > most[name] {
			t.Errorf("the work for a MIG layout: %s %d times, want at most %d", name, count, most[name])
		}
	}
	if did["units kept"] < 2 || did["CDI spec"] == 0 {
		t.Errorf("the work for a MIG layout is %v; want the GPU withheld and its instances in the CDI spec", did)
	}
}
