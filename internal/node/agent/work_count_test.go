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

// work counts the work of an agent's actors.
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
		c.PollInterval.Duration = time.Minute // A periodic scan is not an event.
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

// of returns the work for an event: how often each actor works, and the writes to the API server.
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
	time.Sleep(1500 * time.Millisecond) // Further work would be done now; a second write of the GPUNode comes after a second.
	after := read()
	did := map[string]int{}
	for name, count := range after {
		if count > before[name] {
			did[name] = count - before[name]
		}
	}
	return did
}

// attempts is how often TestWorkPerEvent counts at most. On a loaded machine the causes of one event are more than the 50 ms apart within
// which an actor works once; work that is done too often is so in each attempt.
const attempts = 3

// TestWorkPerEvent checks that an event makes each actor that it concerns work once, and the others not at all.
func TestWorkPerEvent(t *testing.T) {
	var wrong []string
	for i := range attempts {
		t.Run(fmt.Sprint("attempt ", i+1), func(t *testing.T) { wrong = workPerEvent(t) })
		if len(wrong) == 0 {
			return
		}
		t.Logf("attempt %d:\n%s", i+1, strings.Join(wrong, "\n"))
	}
	t.Errorf("the work is wrong in each of %d attempts, in the last one:\n%s", attempts, strings.Join(wrong, "\n"))
}

// workPerEvent returns for each event what is wrong.
func workPerEvent(t *testing.T) (wrong []string) {
	b := newIdleBench(t, "a100x8-40g")
	w := countWork(b)
	shared := func(replicas int) string {
		return fmt.Sprintf("gpus:\n- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: %d, timeSlice: short, resourceName: nvidia.com/gpu.shared}}\n", replicas)
	}
	const (
		packed = "sharedDevicesAllocationPolicy: packed\n"
		layout = "- {select: {index: [3]}, mig: {devices: {3g.20gb: 2}}}\n"
	)
	allocate := func(resource, id string) func() {
		return func() {
			if _, err := b.kubelet.Allocate(t.Context(), resource, []string{id}); err != nil {
				t.Fatal(err)
			}
		}
	}
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
		{"an Allocate", allocate(resource, string(b.uuid(0))), map[string]int{"gpunodesync": 1}},
		{"an Allocate of a replica", allocate("nvidia.com/gpu.shared", string(b.uuid(1))+"::0"), map[string]int{"gpunodesync": 1}},
		{"an edit of one rule", func() {
			b.configure(shared(3))
			b.awaitOf("nvidia.com/gpu.shared", healthy(3))
		}, map[string]int{
			"allocatable": 1, "units kept": 1, "deviceplugin": 1, "cdisync": 1, "migsync": 1, "timeslice": 1,
			"gpunodesync": 1, "labelsync": 1, "write of gpunodes": 1,
		}},
		{"an edit that does not concern the use of a device", func() {
			b.configure(packed + shared(3))
			awaitTrue(t, "the new policy", func() bool { return b.agent.advertised().Policy == "packed" })
		}, map[string]int{"deviceplugin": 1, "cdisync": 1, "migsync": 1, "timeslice": 1, "gpunodesync": 1, "labelsync": 1, "write of gpunodes": 1}},
		// The GPU stops before its mode changes, so that the work for the edit does not coincide with that for the new
		// MIG devices. That the driver does not answer is shown after 2 s, which is after the end of this count.
		{"a MIG layout, by which its GPU is withheld", func() {
			if err := b.machine.Inject(sim.Fault{GPU: "3", Hang: "SetMigMode"}); err != nil {
				t.Fatal(err)
			}
			b.configure(packed + shared(3) + layout)
			b.await(healthy(6))
		}, map[string]int{
			"allocatable": 1, "units kept": 1, "deviceplugin": 1, "cdisync": 1, "migsync": 1, "timeslice": 1,
			"gpunodesync": 1, "labelsync": 1, "write of gpunodes": 1,
		}},
		{"a fault of one GPU", func() {
			if err := b.machine.Inject(sim.Fault{GPU: "5", XID: 79}); err != nil {
				t.Fatal(err)
			}
			b.await(healthy(5))
		}, map[string]int{
			"allocatable": 1, "deviceplugin": 1, "cdisync": 1, "migsync": 1, "timeslice": 1, "healthsync": 1, "gpunodesync": 1, "labelsync": 1,
			"write of events": 1, "write of gpunodes": 1, "write of nodes": 1, "write of nodes/status": 1,
		}},
	}
	for _, tc := range tests {
		if tc.event == "a fault of one GPU" {
			wrong = append(wrong, countNewMIGDevices(b, w)...)
		}
		if diff := cmp.Diff(tc.want, w.of(tc.do)); diff != "" {
			wrong = append(wrong, fmt.Sprintf("the work for %s (-want +got):\n%s", tc.event, diff))
		}
	}
	return wrong
}

// countNewMIGDevices lets the change of MIG go on, counts the work for its result, and returns what is wrong. The driver shows the new
// mode and the new devices at once or one after the other, so there are one or two snapshots; healthsync works once for each, and so do
// all others that follow the hardware. The use of the devices is settled for each snapshot, with the GPU still withheld, and once more
// when the change is verified, by which the GPU is no longer withheld: that may coincide with the last snapshot. The device plugin follows
// the hardware without waiting for the use, and both, and what can be injected, at their own times; the GPUNode and the labels follow
// both, once for those within 50 ms. With a third snapshot, the first MIG device is offered before the second one exists.
func countNewMIGDevices(b *bench, w *work) (wrong []string) {
	did := w.of(func() {
		if err := b.machine.Clear("3"); err != nil {
			b.t.Fatal(err)
		}
		b.awaitOf("nvidia.com/mig-3g.20gb", healthy(2))
	})
	snapshots := did["healthsync"]
	// A call of the driver that takes more than 250 ms, as with the race detector, ends a round, and the next one begins with a snapshot.
	if snapshots < 1 || snapshots > 4 {
		wrong = append(wrong, fmt.Sprintf("%d snapshots of the new MIG devices, want 1 to 4", snapshots))
	}
	want := map[string][2]int{
		"healthsync": {snapshots, snapshots}, "migsync": {snapshots, snapshots}, "units kept": {1, max(1, snapshots-1)}, "CDI spec": {1, snapshots},
		"allocatable": {snapshots, snapshots + 1}, "cdisync": {snapshots, snapshots + 1}, "timeslice": {snapshots, snapshots + 1},
		"deviceplugin": {snapshots, 2*snapshots + 2}, "gpunodesync": {1, 2 * snapshots}, "labelsync": {1, 2 * snapshots},
		"write of events": {1, 1}, "write of gpunodes": {1, snapshots}, "write of nodes": {1, 1},
	}
	for name, count := range did {
		if bounds := want[name]; count < bounds[0] || count > bounds[1] {
			wrong = append(wrong, fmt.Sprintf("the work for the new MIG devices, with %d snapshots: %s %d times, want %d to %d", snapshots, name, count, bounds[0], bounds[1]))
		}
	}
	for name, bounds := range want {
		if did[name] == 0 {
			wrong = append(wrong, fmt.Sprintf("the work for the new MIG devices: %s did nothing, want %d to %d times", name, bounds[0], bounds[1]))
		}
	}
	return wrong
}
