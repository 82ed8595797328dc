package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/gpu"
)

// twin is a node in a few lines: a kubelet that allocates as 1.37 does (see the
// facts in internal/kubelet), a runtime, and an agent around the ledger. It knows
// the truth, which is on which devices processes live.
type twin struct {
	t       *rapid.T
	path    string
	clock   *clocktesting.FakePassiveClock
	ledger  *Ledger
	devices []gpu.DeviceKey
	// The kubelet: what it remembers, by pod and container, and its file; a nil
	// file is one that cannot be read.
	memory, file map[string]map[string][]gpu.DeviceKey
	pods         map[string]*twinPod
	next         int
}

type twinPod struct {
	uid        string
	active     bool // the kubelet's list has it; without, only its processes are left
	rejected   bool
	containers []*twinContainer
}

type twinContainer struct {
	name  string
	init  bool
	wants int
	id    string // of the living one; empty when none lives
	uses  []gpu.DeviceKey
	done  bool
}

func newTwin(t *rapid.T, dir string) *twin {
	w := &twin{
		t: t, path: filepath.Join(dir, "ledger"), clock: clocktesting.NewFakePassiveClock(start),
		memory: map[string]map[string][]gpu.DeviceKey{}, file: map[string]map[string][]gpu.DeviceKey{}, pods: map[string]*twinPod{},
	}
	for i := range 6 {
		w.devices = append(w.devices, key(fmt.Sprintf("G%d", i)))
	}
	w.startAgent()
	return w
}

func (w *twin) startAgent() {
	l, err := Open(Deps{Path: w.path, BootID: "boot", Clock: w.clock, Log: quiet(), Look: w.containers, LookAge: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	w.ledger = l
	w.look()
}

func (w *twin) containers() ([]Container, error) {
	var living []Container
	for _, uid := range w.uids() {
		for _, c := range w.pods[uid].containers {
			if c.id != "" {
				living = append(living, Container{ID: c.id, PodUID: uid, Name: c.name, Keys: slices.Clone(c.uses)})
			}
		}
	}
	return living, nil
}

// look is what the agent does all the time.
func (w *twin) look() {
	var view NodeView
	view.Containers, _ = w.containers()
	if w.file == nil {
		view.CheckpointErr = os.ErrNotExist
	}
	for pod, containers := range w.file {
		for name, keys := range containers {
			view.Assignments = append(view.Assignments, Assignment{PodUID: pod, Container: name, Keys: keys})
		}
	}
	if changes := w.ledger.Reconcile(view); len(changes.Conflicts) > 0 {
		w.t.Fatalf("conflicts: %v", changes)
	}
}

func (w *twin) uids() []string {
	var uids []string
	for uid := range w.pods {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

// forgetInactive is the kubelet's UpdateAllocatedDevices.
func (w *twin) forgetInactive() {
	for uid := range w.memory {
		if p := w.pods[uid]; p == nil || !p.active {
			delete(w.memory, uid)
		}
	}
}

func (w *twin) write() {
	w.file = map[string]map[string][]gpu.DeviceKey{}
	for uid, containers := range w.memory {
		w.file[uid] = map[string][]gpu.DeviceKey{}
		for name, keys := range containers {
			w.file[uid][name] = keys
		}
	}
}

// allocate is the kubelet's allocateContainerResources, with the plugin's part in it.
func (w *twin) allocate(p *twinPod, c *twinContainer, reuse []gpu.DeviceKey) error {
	w.forgetInactive()
	if w.memory[p.uid][c.name] != nil {
		return nil
	}
	chosen := slices.Clone(reuse[:min(len(reuse), c.wants)])
	var free []gpu.DeviceKey
	for _, k := range w.devices {
		used := slices.Contains(chosen, k)
		for _, containers := range w.memory {
			for _, keys := range containers {
				used = used || slices.Contains(keys, k)
			}
		}
		if !used {
			free = append(free, k)
		}
	}
	if len(chosen)+len(free) < c.wants {
		return fmt.Errorf("unavailable")
	}
	w.ledger.Offered(free)
	preferred := slices.DeleteFunc(slices.Clone(free), func(k gpu.DeviceKey) bool { _, barred := w.ledger.BarredBy(k); return barred })
	enough := len(chosen)+len(preferred) >= c.wants
	for _, k := range append(preferred, free...) {
		if len(chosen) < c.wants && !slices.Contains(chosen, k) {
			chosen = append(chosen, k)
		}
	}
	if err := w.ledger.Acquire(Holder{Kind: Pod}, chosen); err != nil {
		if enough {
			w.t.Fatalf("%d devices are free for %s/%s, and it was refused: %v", len(preferred), p.uid, c.name, err)
		}
		return err
	}
	if w.memory[p.uid] == nil {
		w.memory[p.uid] = map[string][]gpu.DeviceKey{}
	}
	w.memory[p.uid][c.name] = chosen
	if rapid.IntRange(0, 9).Draw(w.t, "another plugin fails") == 0 {
		return fmt.Errorf("another plugin failed") // before the file is written
	}
	w.write()
	return nil
}

// admit allocates a pod's containers. After a restart, those that run are passed over.
func (w *twin) admit(p *twinPod) {
	var reuse []gpu.DeviceKey
	for _, c := range p.containers {
		if c.id != "" && w.memory[p.uid][c.name] == nil {
			continue
		}
		if w.allocate(p, c, reuse) != nil {
			p.rejected, p.active = true, false
			return
		}
		if c.init {
			reuse = slices.Clone(w.memory[p.uid][c.name])
		} else {
			reuse = slices.DeleteFunc(reuse, func(k gpu.DeviceKey) bool { return slices.Contains(w.memory[p.uid][c.name], k) })
		}
	}
}

func (w *twin) newPod(*rapid.T) {
	w.next++
	p := &twinPod{uid: fmt.Sprintf("P%03d", w.next), active: true}
	n := rapid.IntRange(1, 3).Draw(w.t, "devices")
	if rapid.Bool().Draw(w.t, "init") {
		p.containers = append(p.containers, &twinContainer{name: "init", init: true, wants: n})
	}
	p.containers = append(p.containers, &twinContainer{name: "app", wants: n})
	if rapid.IntRange(0, 3).Draw(w.t, "second") == 0 {
		p.containers = append(p.containers, &twinContainer{name: "second", wants: 1})
	}
	w.pods[p.uid] = p
	w.admit(p)
}

func (w *twin) anyPod(label string, ok func(*twinPod) bool) *twinPod {
	var uids []string
	for _, uid := range w.uids() {
		if ok(w.pods[uid]) {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 {
		w.t.Skip("no such pod")
	}
	return w.pods[rapid.SampledFrom(uids).Draw(w.t, label)]
}

func running(p *twinPod) bool {
	return slices.ContainsFunc(p.containers, func(c *twinContainer) bool { return c.id != "" })
}

// startNext starts the container whose turn it is: init first, then the others. One that the
// kubelet has forgotten is allocated now.
func (w *twin) startNext(*rapid.T) {
	p := w.anyPod("start", func(p *twinPod) bool { return p.active })
	for _, c := range p.containers {
		if c.id != "" || c.init && c.done {
			if c.init && c.id != "" {
				return
			}
			continue
		}
		if w.allocate(p, c, nil) != nil {
			return // tried again with back-off
		}
		w.next++
		c.id, c.uses = fmt.Sprintf("c%04d", w.next), slices.Clone(w.memory[p.uid][c.name])
		return
	}
}

func (w *twin) exit(*rapid.T) {
	p := w.anyPod("exit", running)
	for _, c := range p.containers {
		if c.id != "" {
			c.id, c.uses, c.done = "", nil, true
			return
		}
	}
}

func (w *twin) remove(p *twinPod) {
	p.active = false
	if !running(p) {
		delete(w.pods, p.uid)
	}
}

func (w *twin) deleteGently(*rapid.T) {
	p := w.anyPod("delete", func(*twinPod) bool { return true })
	for _, c := range p.containers {
		c.id, c.uses = "", nil
	}
	w.remove(p)
}

func (w *twin) deleteByForce(*rapid.T) {
	w.remove(w.anyPod("force", func(p *twinPod) bool { return p.active }))
}

func (w *twin) restartKubelet(t *rapid.T) {
	if rapid.Bool().Draw(t, "checkpoint lost") {
		w.file = nil
	}
	w.memory = map[string]map[string][]gpu.DeviceKey{}
	for uid, containers := range w.file {
		w.memory[uid] = map[string][]gpu.DeviceKey{}
		for name, keys := range containers {
			w.memory[uid][name] = keys
		}
	}
	w.ledger.Distrust()
	w.write() // the device list arrives
	if rapid.Bool().Draw(t, "agent is quick") {
		w.look()
	}
	for _, uid := range w.uids() {
		if p := w.pods[uid]; p.active {
			w.admit(p)
		}
	}
}

func (w *twin) restartAgent(t *rapid.T) {
	w.ledger.Close()
	if rapid.Bool().Draw(t, "ledger lost") {
		_ = os.Remove(w.path)
	}
	w.startAgent()
}

// check is the truth: processes of two pods never live on one device, and each
// device that they live on without the kubelet's knowledge is barred once looked at.
func (w *twin) check(t *rapid.T) {
	user := map[gpu.DeviceKey]string{}
	for _, uid := range w.uids() {
		for _, c := range w.pods[uid].containers {
			for _, k := range c.uses {
				if other := user[k]; other != "" && other != uid {
					t.Fatalf("%s is used by %s and %s", k, other, uid)
				}
				user[k] = uid
			}
		}
	}
}

func TestTwin(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		w := newTwin(t, filepath.Join(dir, fmt.Sprint(run)))
		defer func() { w.ledger.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"new pod": w.newPod, "start": w.startNext, "start again": w.startNext, "exit": w.exit,
			"delete": w.deleteGently, "delete by force": w.deleteByForce,
			"look": func(*rapid.T) { w.look() }, "time": func(*rapid.T) { w.clock.SetTime(w.clock.Now().Add(20 * time.Second)) },
			"kubelet": w.restartKubelet, "agent": w.restartAgent,
			"checkpoint vanishes": func(*rapid.T) { w.file = nil },
			"":                    w.check,
		})
		w.end()
	})
}

// end lets everything end, after which nothing may be held.
func (w *twin) end() {
	clear(w.pods)
	w.forgetInactive()
	w.write()
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.look()
	if left := w.ledger.Holdings(); len(left) > 0 {
		w.t.Fatalf("left over: %v", left)
	}
	for _, k := range w.devices {
		if h, barred := w.ledger.BarredBy(k); barred {
			w.t.Fatalf("still barred: %v", h)
		}
	}
}
