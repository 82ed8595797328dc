package migapply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
)

var start = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// hastyClock does not wait: after a Sleep the time has passed immediately.
type hastyClock struct{ *clocktesting.FakeClock }

func (c hastyClock) After(d time.Duration) <-chan time.Time {
	c.Step(d)
	fired := make(chan time.Time, 1)
	fired <- c.Now()
	return fired
}

// checker is the part of a test that a world uses.
type checker interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a model of a node: GPUs, a simple kubelet, the real ledger, and an agent that can be killed. It checks the
// invariants.
type world struct {
	t    checker
	dir  string
	boot string
	// node is the UID of this Node; empty while it is not known.
	node  string
	clock hastyClock
	gpus  []*fakeGPU
	// replicas is how many replicas each device of a GPU is advertised as; 0 for whole devices.
	replicas map[gpu.UUID]int
	pods     map[string]*fakePod
	wants    []Want
	blind    string
	// waiting are the claims that wait for their device.
	waiting map[string]bool
	// meanwhile, when not nil, is called at each step of a change.
	meanwhile func()
	busy      []gpu.UUID // whether Berth runs a program on it

	snapshot  *gpu.Snapshot
	book      *ledger.Ledger
	partition *Partition
	lives     int
	ctx       context.Context

	// points counts the points at which the agent can be killed; it is killed at the killAt-th.
	points int
	killAt int
	dead   bool
	cancel context.CancelFunc
	// trace has the steps and the calls of the hardware.
	trace []string
	// breaks reports whether a call of the hardware fails, such as "create GPU-0 1g.10gb 0".
	breaks func(call string) error
	// slow are the prefixes of the calls that return only when answer lets them.
	slow    []string
	answers map[gpu.UUID]chan struct{}
	notes   int
	// changing is true from the write of the journal until the change is complete.
	changing bool
	// violation is the first violation of an invariant.
	violation string
}

type fakeGPU struct {
	id         gpu.UUID
	index      int
	needsReset bool // for a change of the mode
	enabled    bool
	pending    bool
	incapable  bool
	gone       bool
	unsure     bool // the scan could not read all of its partitions
	openers    []openers.Opener
	instances  []fakeInstance
}

type fakeInstance struct {
	gpu.GPUInstance
	device bool // it has its compute instance
	bare   bool // it has no device nodes
}

type fakePod struct {
	keys   []gpu.DeviceKey
	orphan bool
}

func geometry() gpu.MIGGeometry {
	return gpu.MIGGeometry{MemorySlices: 8, ComputeSlices: 7, Profiles: []gpu.MIGProfile{
		{Name: "1g.10gb", ID: 19, ComputeSlices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 7},
		{Name: "2g.20gb", Number: 1, ID: 14, ComputeSlices: 2, Size: 2, Starts: []int{0, 2, 4}, Max: 3},
		{Name: "3g.40gb", Number: 2, ID: 9, ComputeSlices: 3, Size: 4, Starts: []int{0, 4}, Max: 2},
		{Name: "4g.40gb", Number: 3, ID: 5, ComputeSlices: 4, Size: 4, Starts: []int{0}, Max: 1},
		{Name: "7g.80gb", Number: 4, ID: 0, ComputeSlices: 7, Size: 8, Starts: []int{0}, Max: 1},
	}}
}

// newWorld returns a world with this number of GPUs; every second one changes its mode without a reset.
func newWorld(t checker, dir string, gpus int) *world {
	w := &world{
		t: t, dir: dir, boot: "boot", clock: hastyClock{clocktesting.NewFakeClock(start)},
		answers: map[gpu.UUID]chan struct{}{}, replicas: map[gpu.UUID]int{}, pods: map[string]*fakePod{}, waiting: map[string]bool{},
	}
	for i := range gpus {
		w.gpus = append(w.gpus, &fakeGPU{id: gpu.UUID(fmt.Sprintf("GPU-%d", i)), index: i, needsReset: i%2 == 0})
	}
	w.scan()
	w.startAgent()
	return w
}

// startAgent starts an agent, which first compares its ledger with the node.
func (w *world) startAgent() {
	w.t.Helper()
	book, err := ledger.Open(ledger.Deps{Path: filepath.Join(w.dir, "ledger"), BootID: w.boot, Clock: w.clock, Log: quiet(), Placement: w.placement})
	if err != nil {
		w.t.Fatalf("open ledger: %v", err)
	}
	w.book, w.dead, w.changing = book, false, false
	w.lives++
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.partition = New(Deps{
		Dir: w.dir, Owner: fmt.Sprintf("agent-%d", w.lives), Hardware: hardware{w}, Inventory: inventory{w}, Ledger: runningLedger{w, book},
		Devices: w.devices, Blind: func() string { return w.blind }, Quiesce: w.quiesce, Openers: w.openers, Notify: func() { w.notes++ },
		NodeUID: func() string { return w.node },
		Clock:   w.clock, Log: quiet(), Fault: w.fault,
	})
	w.compare()
}

// placement returns where a MIG device is according to the last scan.
func (w *world) placement(key gpu.DeviceKey) gpu.Placement {
	if _, device := w.snapshot.Device(key.MIG); device != nil {
		return gpu.Placement{Start: device.Start, Size: device.Size}
	}
	return gpu.Placement{}
}

// endAgent ends an agent as the kernel does.
func (w *world) endAgent() {
	w.cancel()
	if err := w.book.Close(); err != nil {
		w.t.Fatalf("close ledger: %v", err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

var errKilled = errors.New("killed")

// point is a moment at which the agent may be killed.
func (w *world) point(what string) bool {
	w.points++
	w.trace = append(w.trace, what)
	w.dead = w.dead || w.points == w.killAt
	return w.dead
}

func (w *world) fault(step Step) error {
	w.mustRun()
	w.changing = w.changing || step == StepJournalWritten
	w.grab()
	w.changing = w.changing && step != StepRescanned
	if w.meanwhile != nil {
		w.meanwhile()
	}
	if w.point(string(step)) {
		return errKilled
	}
	return nil
}

// never records a violation; the calls of the hardware are not on the test's goroutine.
func (w *world) never(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
	}
}

func (w *world) mustRun() {
	if w.dead {
		w.never("a killed agent continues after %v", w.trace)
	}
}

// grab simulates a pod that tries to get each device that will be removed while its GPU changes. The device plugin advertises nothing
// of a GPU that claims change.
func (w *world) grab() {
	for _, status := range w.partition.Statuses() {
		claims := slices.ContainsFunc(w.wants, func(want Want) bool { return want.UUID == status.UUID && want.Claims })
		if !w.changing || status.State != Changing || claims {
			continue
		}
		keys := []gpu.DeviceKey{{GPU: status.UUID}, {GPU: status.UUID, Share: 1}}
		if status.Plan.SetMode == nil {
			keys = nil
		}
		for _, gone := range status.Plan.Destroy {
			if gone.UUID != "" {
				keys = append(keys, gpu.DeviceKey{GPU: status.UUID, MIG: gone.UUID},
					gpu.DeviceKey{GPU: status.UUID, MIG: gone.UUID, Share: 2})
			}
		}
		for _, key := range keys {
			var blocked *ledger.BlockedError
			if err := w.book.Acquire(gpu.Holder{Kind: gpu.HolderPod}, []gpu.DeviceKey{key}); !errors.As(err, &blocked) {
				w.never("a pod got %s of a device that changes (%v) after %v", key, err, w.trace)
			}
		}
	}
}

// look returns the snapshot of a scan.
func (w *world) look() *gpu.Snapshot {
	s := &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "1"}}}}
	for _, c := range w.gpus {
		one := gpu.GPU{UUID: c.id, Index: c.index, Product: "NVIDIA A100-SXM4-80GB"}
		if c.gone {
			one.Health.State = gpu.Gone
		}
		if !c.incapable {
			one.MIG = gpu.MIG{Capable: true, Enabled: c.enabled, PendingEnabled: c.pending,
				ModeNeedsReset: c.needsReset, Geometry: geometry()}
		}
		for i, in := range c.instances {
			if !in.device {
				one.MIG.Empty = append(one.MIG.Empty, in.GPUInstance)
				continue
			}
			one.MIG.Devices = append(one.MIG.Devices, gpu.MIGDevice{
				Partition: gpu.Partition{UUID: c.device(in), Profile: in.Profile, Index: i},
				GI:        in.GI, Start: in.Start, Size: in.Size,
			})
			if c.unsure {
				one.MIG.Devices[len(one.MIG.Devices)-1].Start, one.MIG.Devices[len(one.MIG.Devices)-1].Size = 0, 0
			}
		}
		one.MIG.Unsure = c.unsure
		s.GPUs = append(s.GPUs, one)
	}
	return s
}

// device names a MIG device by its place alone, so that a later one can have the name of one that was destroyed.
func (c *fakeGPU) device(in fakeInstance) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("MIG-%d-%d", c.index, in.GI))
}

func (w *world) scan() { w.snapshot = w.look() }

func (w *world) gpuOf(id gpu.UUID) *fakeGPU {
	for _, c := range w.gpus {
		if c.id == id {
			return c
		}
	}
	w.t.Fatalf("no device %s", id)
	return nil
}

// devices returns the keys under which devices are advertised: whole, or as replicas.
func (w *world) devices(id gpu.UUID) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	add := func(key gpu.DeviceKey) {
		if w.replicas[id] == 0 {
			keys = append(keys, key)
		}
		for n := range w.replicas[id] {
			key.Share = n + 1
			keys = append(keys, key)
		}
	}
	whole := w.snapshot.GPU(id)
	if whole == nil {
		return nil
	}
	if !whole.MIG.Enabled {
		add(gpu.DeviceKey{GPU: id})
	}
	for _, device := range whole.MIG.Devices {
		add(gpu.DeviceKey{GPU: id, MIG: device.UUID})
	}
	return keys
}

// compare updates the ledger from the kubelet, as the agent does continuously.
func (w *world) compare() {
	var view ledger.NodeView
	for _, pod := range slices.Sorted(maps.Keys(w.pods)) {
		p := w.pods[pod]
		if p.orphan {
			view.Containers = append(view.Containers, ledger.Container{ID: "c-" + pod, PodUID: pod,
				Namespace: "default", Pod: pod, Name: "main", Keys: p.keys})
			continue
		}
		view.Assignments = append(view.Assignments, ledger.Assignment{PodUID: pod, Container: "main", Keys: p.keys})
		view.Pods = append(view.Pods, ledger.NodePod{UID: pod, Namespace: "default", Name: pod})
	}
	if changes := w.book.Reconcile(view); len(changes.Conflicts) > 0 {
		w.t.Fatalf("conflicts: %v", changes)
	}
}

// run starts a pod on a device, unless the device is blocked.
func (w *world) run(pod string, key gpu.DeviceKey) error {
	if !slices.Contains(w.devices(key.GPU), key) {
		return fmt.Errorf("%s is not advertised", key)
	}
	if err := w.book.Acquire(gpu.Holder{Kind: gpu.HolderPod}, []gpu.DeviceKey{key}); err != nil {
		return err
	}
	w.pods[pod] = &fakePod{keys: []gpu.DeviceKey{key}}
	w.compare()
	return nil
}

func (w *world) end(pod string) {
	delete(w.pods, pod)
	w.compare()
}

// reconcile returns the statuses; if the agent is killed during it, the next one is started.
func (w *world) reconcile() []Status {
	w.t.Helper()
	statuses := w.partition.Reconcile(w.ctx, w.wants)
	if w.violation != "" {
		w.t.Fatalf("%s", w.violation)
	}
	if w.dead {
		w.killAt = 0
		w.answer()
		w.endAgent()
		w.startAgent()
	}
	return statuses
}

// answer lets the slow calls return, one after the other, and waits for that.
func (w *world) answer() {
	w.slow = nil
	for _, c := range w.gpus {
		if answer := w.answers[c.id]; answer != nil {
			close(answer)
			<-w.partition.open[c.id].call.Done()
		}
	}
	clear(w.answers)
	for w.partition.usersOfStore() > 0 { // A goroutine of each call releases the lock.
		runtime.Gosched()
	}
}

func (p *Partition) usersOfStore() int {
	p.storeMu.Lock()
	defer p.storeMu.Unlock()
	return p.users
}

// settle reconciles until nothing changes any more, including after the pause that follows a failure.
func (w *world) settle() []Status {
	w.t.Helper()
	quiet := 0
	for range 50 {
		lives, points := w.lives, w.points
		statuses := w.reconcile()
		quiet++
		if lives != w.lives || points != w.points || slices.ContainsFunc(statuses, func(s Status) bool { return s.State == Failed }) {
			quiet = 0
		}
		if quiet == 2 {
			return statuses
		}
		w.clock.Step(lastRetry)
	}
	w.t.Fatalf("never settles: %v; %v", w.partition.Statuses(), w.trace)
	return nil
}

// want sets the wanted state of a GPU: "off", "on", "2x1g.10gb 1x4g.40gb", or "-" for nothing.
func (w *world) want(id gpu.UUID, text, source string) {
	w.wants = slices.DeleteFunc(w.wants, func(o Want) bool { return o.UUID == id })
	if text != "-" {
		w.wants = append(w.wants, Want{UUID: id, Wanted: wanted(text), Source: source})
	}
}

func wanted(text string) mig.Wanted {
	if text == "off" {
		return mig.Wanted{}
	}
	out := mig.Wanted{Enabled: true, Devices: map[string]int{}}
	for part := range strings.FieldsSeq(text) {
		var n int
		var profile string
		if _, err := fmt.Sscanf(part, "%dx%s", &n, &profile); err == nil {
			out.Devices[profile] = n
		}
	}
	return out
}

// be sets the shape of a GPU immediately, without an agent.
func (w *world) be(id gpu.UUID, text string) {
	c, to := w.gpuOf(id), wanted(text)
	c.enabled, c.pending, c.instances = to.Enabled, to.Enabled, nil
	w.scan()
	plan := mig.PlanGPU(mig.GPUOf(w.snapshot.GPU(id), func(gpu.DeviceKey) []string { return nil }), to)
	for _, one := range plan.Create {
		c.instances = append(c.instances, fakeInstance{
			GPUInstance: gpu.GPUInstance{GI: 10*one.Size + one.Start, Profile: one.Profile, Start: one.Start, Size: one.Size}, device: true,
		})
	}
	w.scan()
}

// picture prints the hardware, the holders, and the changes in progress.
func (w *world) picture() string {
	var b strings.Builder
	for _, c := range w.gpus {
		fmt.Fprintf(&b, "%s MIG %s", c.id, onOff(c.enabled))
		if c.pending != c.enabled {
			fmt.Fprintf(&b, ", %s after a reset", onOff(c.pending))
		}
		for _, in := range c.instances {
			fmt.Fprintf(&b, " %s@%d", in.Profile, in.Start)
			if !in.device {
				b.WriteString("(empty)")
			}
		}
		b.WriteString("\n")
	}
	for _, h := range w.book.Holdings() {
		fmt.Fprintf(&b, "held: %s\n", h)
	}
	return b.String()
}

// reached fails unless the GPUs are as wanted and no journal or maintenance is left.
func (w *world) reached(wants []Want) {
	w.t.Helper()
	now := w.look()
	for _, want := range wants {
		device := now.GPU(want.UUID)
		c := mig.GPUOf(device, func(gpu.DeviceKey) []string { return nil })
		if !mig.Matches(c, want.Wanted) || len(device.MIG.Empty) > 0 || device.MIG.PendingEnabled != device.MIG.Enabled {
			w.t.Fatalf("%s is not %s:\n%s%v", want.UUID, shape(want.Wanted), w.picture(), w.trace)
		}
	}
	for _, c := range w.gpus {
		for _, in := range c.instances {
			if in.bare {
				w.t.Fatalf("%s at %d of %s has no device nodes: %v", in.Profile, in.Start, c.id, w.trace)
			}
		}
	}
	w.clean()
}

// clean fails when maintenance or a journal is left.
func (w *world) clean() {
	w.t.Helper()
	for _, held := range w.book.Holdings() {
		if held.Holder.Kind == gpu.HolderMaintenance {
			w.t.Fatalf("maintenance is left:\n%s%v", w.picture(), w.trace)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, JournalFile+"*")); len(left) > 0 {
		w.t.Fatalf("files are left: %v; %v", left, w.trace)
	}
}
