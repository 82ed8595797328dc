package ledger

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// twin is a simple model of a node: a kubelet that allocates as 1.37 does (see the facts in internal/node/kubelet), a
// runtime, and an agent around the ledger. It has the actual state: the devices that processes use.
type twin struct {
	t      *rapid.T
	path   string
	clock  *clocktesting.FakePassiveClock
	ledger *Ledger
	// layouts are the devices that each GPU is advertised as; with sizes they change at any time, whatever is held.
	layouts []layout
	sizes   bool
	// The kubelet: its list of devices, by resource; its assignments, by pod and container; and its file. A nil file
	// cannot be read.
	lists  map[string][]gpu.DeviceKey
	memory map[string]map[string]allotted
	file   map[string]map[string]allotted
	writes int // of the file
	// reserved is the kubelet's allocatedDevices, by resource, which it does not offer. A List by any client drops a
	// reservation whose Allocate is in progress.
	reserved map[string][]gpu.DeviceKey
	pods     map[string]*twinPod
	next     int
	// away is true while the API server does not respond to the agent. Its state of the pods is then stale.
	away bool
}

// allotted are a container's devices of its one resource.
type allotted struct {
	resource string
	keys     []gpu.DeviceKey
}

// layout is what a GPU is advertised as: a resource, and the devices without the GPU's name.
type layout struct {
	resource string
	devices  []string
}

var twinLayouts = []layout{
	{"gpu", []string{""}},
	{"renamed", []string{""}},
	{"gpu", []string{"#1", "#2", "#3"}},
	{"gpu.shared", []string{"#1", "#2", "#3"}},
	{"renamed", []string{"#1", "#2"}},
	{"mig", []string{"/M1", "/M2"}},
	{"mig", []string{"/M1", "/M2#1", "/M2#2"}},
	{"mig.shared", []string{"/M1#1", "/M1#2", "/M2#1", "/M2#2"}},
}

type twinPod struct {
	uid        string
	active     bool // the kubelet's list has it; without, only its processes are left
	late       bool // it has ended, and the agent has not been notified yet
	rejected   bool
	admitted   bool // it has, or had, a cgroup
	containers []*twinContainer
}

type twinContainer struct {
	name     string
	init     bool
	resource string
	wants    int
	id       string // of the running one; empty when none runs
	uses     []gpu.DeviceKey
	done     bool
}

// newTwin returns a node of six GPUs that are advertised whole, or of three in changing sizes.
func newTwin(t *rapid.T, dir string, sizes bool) *twin {
	w := &twin{
		t: t, path: filepath.Join(dir, "ledger"), clock: clocktesting.NewFakePassiveClock(start), sizes: sizes,
		reserved: map[string][]gpu.DeviceKey{},
		memory:   map[string]map[string]allotted{}, file: map[string]map[string]allotted{}, pods: map[string]*twinPod{},
	}
	for range 6 {
		w.layouts = append(w.layouts, twinLayouts[0])
	}
	if sizes {
		w.layouts = w.layouts[:3]
	}
	w.listDevices(t)
	w.startAgent()
	return w
}

// listDevices sends the present devices to the kubelet.
func (w *twin) listDevices(*rapid.T) {
	w.lists = map[string][]gpu.DeviceKey{}
	for i, layout := range w.layouts {
		for _, device := range layout.devices {
			w.lists[layout.resource] = append(w.lists[layout.resource], key(fmt.Sprintf("G%d%s", i, device)))
		}
	}
}

// reconfigure advertises a GPU in another way. The kubelet may get the list later.
func (w *twin) reconfigure(t *rapid.T) {
	device := rapid.IntRange(0, len(w.layouts)-1).Draw(t, "GPU")
	w.layouts[device] = rapid.SampledFrom(twinLayouts).Draw(t, "layout")
	if rapid.Bool().Draw(t, "told") {
		w.listDevices(t)
	}
}

func (w *twin) startAgent() {
	l, err := Open(Deps{Path: w.path, BootID: "boot", Clock: w.clock, Log: quiet(), Look: w.containers,
		LookIn: w.containersIn, Stamp: w.stamp,
		Assigned: w.assigned, Pod: w.facts, Ask: w.ask})
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

// containersIn are those of some pods.
func (w *twin) containersIn(uids []string) ([]Container, error) {
	living, _ := w.containers()
	return slices.DeleteFunc(living, func(c Container) bool { return !slices.Contains(uids, c.PodUID) }), nil
}

// stamp counts the changes of the checkpoint; sometimes it is unknown.
func (w *twin) stamp() string {
	if w.writes%4 == 3 {
		return ""
	}
	return fmt.Sprint(w.writes)
}

// lose removes the checkpoint.
func (w *twin) lose() {
	w.file = nil
	w.writes++
}

// look reads the node, as the agent does continuously.
func (w *twin) look() { w.compare(w.read()) }

// read is the first part of a look.
func (w *twin) read() NodeView {
	view := w.ledger.NewView()
	view.Containers, _ = w.containers()
	if w.file == nil {
		view.CheckpointErr = os.ErrNotExist
	}
	view.Assignments, _ = w.assigned()
	for pod := range w.file {
		if w.facts(pod).State == PodEnded {
			view.Pods = append(view.Pods, NodePod{UID: pod, Ended: true})
		}
	}
	return view
}

// compare is the second part of a look.
func (w *twin) compare(view NodeView) {
	if changes := w.ledger.Reconcile(view); len(changes.Conflicts) > 0 {
		w.t.Fatalf("conflicts: %v", changes)
	}
}

// assigned returns the present checkpoint.
func (w *twin) assigned() ([]Assignment, error) {
	if w.file == nil {
		return nil, os.ErrNotExist
	}
	var list []Assignment
	for pod, containers := range w.file {
		for name, given := range containers {
			list = append(list, Assignment{PodUID: pod, Container: name, Resource: given.resource, Keys: given.keys})
		}
	}
	return list, nil
}

// facts returns the agent's state of a pod.
func (w *twin) facts(uid string) PodFacts {
	p := w.pods[uid]
	if p == nil || !p.active && !p.late {
		return PodFacts{State: PodEnded}
	}
	facts := PodFacts{State: PodLiving, Unstarted: !p.admitted}
	for _, c := range p.containers {
		facts.Containers = append(facts.Containers, PodContainer{Name: c.name, Init: c.init, Devices: map[string]int{c.resource: c.wants}})
	}
	return facts
}

// ask is PodResources Get, which does not list init containers; the API server's events arrive at the same time.
func (w *twin) ask(questions []Question) []Question {
	if !w.away {
		w.news(nil)
	}
	return slices.DeleteFunc(slices.Clone(questions), func(q Question) bool {
		p := w.pods[q.PodUID]
		if p == nil {
			return true // It has ended, which facts returns.
		}
		inits := !slices.ContainsFunc(p.containers, func(c *twinContainer) bool { return !c.init && slices.Contains(q.Containers, c.name) })
		return inits || slices.ContainsFunc(slices.Collect(maps.Values(w.memory[q.PodUID])), func(given allotted) bool {
			return given.resource == q.Resource && slices.Contains(given.keys, q.Key)
		})
	})
}

// news updates the agent's state from the API server.
func (w *twin) news(*rapid.T) {
	w.away = false
	for uid, p := range w.pods {
		p.late = false
		if !p.active && !running(p) {
			delete(w.pods, uid)
		}
	}
}

func (w *twin) loseAPI(*rapid.T) { w.away = true }

// list is a PodResources List by any client.
func (w *twin) list(*rapid.T) { w.forgetInactive() }

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
	changed := false
	for uid := range w.memory {
		if p := w.pods[uid]; p == nil || !p.active {
			delete(w.memory, uid)
			changed = true
		}
	}
	if changed {
		w.reserveRemembered()
	}
}

// reserveRemembered sets the reservations to the kubelet's assignments.
func (w *twin) reserveRemembered() {
	w.reserved = map[string][]gpu.DeviceKey{}
	for _, containers := range w.memory {
		for _, given := range containers {
			w.reserved[given.resource] = append(w.reserved[given.resource], given.keys...)
		}
	}
}

func (w *twin) write() {
	w.file = remembered(w.memory)
	w.writes++
}

func remembered(what map[string]map[string]allotted) map[string]map[string]allotted {
	copied := map[string]map[string]allotted{}
	for uid, containers := range what {
		copied[uid] = maps.Clone(containers)
	}
	return copied
}

// allocate is the kubelet's allocateContainerResources, with the plugin's part in it.
func (w *twin) allocate(p *twinPod, c *twinContainer, reuse []gpu.DeviceKey, mayFail bool) error {
	w.forgetInactive()
	if _, has := w.memory[p.uid][c.name]; has {
		return nil
	}
	chosen := slices.Clone(reuse[:min(len(reuse), c.wants)])
	var free []gpu.DeviceKey
	for _, k := range w.lists[c.resource] {
		if !slices.Contains(chosen, k) && !slices.Contains(w.reserved[c.resource], k) {
			free = append(free, k)
		}
	}
	if len(chosen)+len(free) < c.wants {
		return fmt.Errorf("unavailable")
	}
	// The kubelet requests a preference only when there is a choice.
	var last []gpu.DeviceKey
	if len(chosen)+len(free) > c.wants && len(chosen) < c.wants {
		last = w.ledger.Offered(c.resource, free)
	}
	preferred := slices.DeleteFunc(slices.Clone(free), func(k gpu.DeviceKey) bool {
		_, blocked := w.ledger.BlockedBy(c.resource, k)
		return blocked || slices.Contains(last, k) || w.used(k)
	})
	enough := len(chosen)+len(preferred) >= c.wants
	for _, k := range append(preferred, free...) {
		if len(chosen) < c.wants && !slices.Contains(chosen, k) {
			chosen = append(chosen, k)
		}
	}
	w.reserved[c.resource] = append(w.reserved[c.resource], chosen...)
	err := w.ledger.Acquire(gpu.Holder{Kind: gpu.HolderPod, Resource: c.resource}, chosen)
	if rapid.IntRange(0, 3).Draw(w.t, "a client lists") == 0 {
		for _, p := range w.pods { // and some pod has just ended
			if p.active && p.rejected {
				p.active = false
			}
		}
		w.forgetInactive()
	}
	if err != nil {
		w.reserveRemembered()
		listed, double := errors.AsType[*listedError](err)
		switch {
		case double && w.file != nil && !w.holds(listed.Pod, c.resource, listed.Key) && !w.away:
			w.t.Fatalf("%s/%s was refused because of %s, which does not have the device: %v", p.uid, c.name, listed.Pod, err)
		case !double && enough:
			w.t.Fatalf("%d devices are free for %s/%s, and it was refused: %v", len(preferred), p.uid, c.name, err)
		}
		return err
	}
	if w.memory[p.uid] == nil {
		w.memory[p.uid] = map[string]allotted{}
	}
	w.memory[p.uid][c.name] = allotted{c.resource, chosen}
	if mayFail && rapid.IntRange(0, 9).Draw(w.t, "another plugin fails") == 0 {
		return fmt.Errorf("another plugin failed") // before the file is written
	}
	w.write()
	return nil
}

// admit allocates a pod's containers. After a restart, those that run are skipped.
func (w *twin) admit(p *twinPod) {
	reuse := map[string][]gpu.DeviceKey{}
	for _, c := range p.containers {
		given, has := w.memory[p.uid][c.name]
		if c.id != "" && !has {
			continue
		}
		if w.allocate(p, c, reuse[c.resource], true) != nil {
			p.rejected = true
			w.remove(p)
			return
		}
		if given = w.memory[p.uid][c.name]; c.init {
			reuse[c.resource] = slices.Clone(given.keys)
		} else {
			reuse[c.resource] = slices.DeleteFunc(reuse[c.resource], func(k gpu.DeviceKey) bool { return slices.Contains(given.keys, k) })
		}
	}
	p.admitted = true
}

func (w *twin) newPod(*rapid.T) {
	w.next++
	p := &twinPod{uid: fmt.Sprintf("P%03d", w.next), active: true}
	n := rapid.IntRange(1, 3).Draw(w.t, "devices")
	resources := slices.Sorted(maps.Keys(w.lists))
	resource := rapid.SampledFrom(resources).Draw(w.t, "resource")
	if rapid.Bool().Draw(w.t, "init") {
		more := rapid.IntRange(0, 2).Draw(w.t, "more for init")
		p.containers = append(p.containers, &twinContainer{name: "init", init: true, resource: resource, wants: n + more})
	}
	p.containers = append(p.containers, &twinContainer{name: "app", resource: resource, wants: n})
	if rapid.IntRange(0, 3).Draw(w.t, "second") == 0 {
		resource := rapid.SampledFrom(resources).Draw(w.t, "second resource")
		p.containers = append(p.containers, &twinContainer{name: "second", resource: resource, wants: 1})
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

// startNext starts the next container: init containers first, then the others. One without an entry in the kubelet is
// allocated now.
func (w *twin) startNext(*rapid.T) {
	p := w.anyPod("start", func(p *twinPod) bool { return p.active })
	for _, c := range p.containers {
		if c.id != "" || c.init && c.done {
			if c.init && c.id != "" {
				return
			}
			continue
		}
		if w.allocate(p, c, nil, !w.sizes) != nil {
			return // tried again with back-off
		}
		w.next++
		c.id, c.uses = fmt.Sprintf("c%04d", w.next), slices.Clone(w.memory[p.uid][c.name].keys)
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

// used reports whether a process uses a device; the ledger need not have read that where it was not called.
func (w *twin) used(key gpu.DeviceKey) bool {
	living, _ := w.containers()
	return slices.ContainsFunc(living, func(c Container) bool { return slices.ContainsFunc(c.Keys, key.Overlaps) })
}

// holds reports whether the kubelet has a device for an active pod.
func (w *twin) holds(uid, resource string, key gpu.DeviceKey) bool {
	p := w.pods[uid]
	return p != nil && p.active && slices.ContainsFunc(slices.Collect(maps.Values(w.memory[uid])), func(given allotted) bool {
		return given.resource == resource && slices.Contains(given.keys, key)
	})
}

// remove ends a pod. The agent may be notified later than the kubelet.
func (w *twin) remove(p *twinPod) {
	p.active = false
	p.late = w.away || rapid.Bool().Draw(w.t, "late")
	if !running(p) && !p.late {
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
	p := w.anyPod("force", func(p *twinPod) bool { return p.active })
	if !w.ledger.certain {
		w.look() // The agent reads the node every 250 ms while it has no checkpoint: no pod starts and is deleted in between.
	}
	w.remove(p)
}

func (w *twin) restartKubelet(t *rapid.T) {
	if rapid.Bool().Draw(t, "checkpoint lost") {
		w.lose()
	}
	underWay := w.read()
	w.memory = remembered(w.file)
	w.reserveRemembered()
	w.ledger.Distrust()
	w.write() // the device list arrives
	if rapid.Bool().Draw(t, "a look was under way") {
		w.compare(underWay)
	}
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
	// With changing sizes the kubelet's memory alone does not prevent overlaps; a holding without a process must be in
	// one of the two files.
	if rapid.Bool().Draw(t, "ledger lost") && !(w.sizes && w.file == nil) {
		_ = os.Remove(w.path)
	}
	w.startAgent()
}

func (w *twin) loseCheckpoint(*rapid.T) {
	if w.sizes {
		w.look() // it was seen before
	}
	w.lose()
}

// check compares with the actual state: processes of two pods never run on one device, nor on two sizes of it, and the
// ledger never has two pods on two sizes.
func (w *twin) check(t *rapid.T) {
	user := map[gpu.DeviceKey]string{}
	for _, uid := range w.uids() {
		for _, c := range w.pods[uid].containers {
			for _, k := range c.uses {
				for other, by := range user {
					if k.Overlaps(other) && by != uid {
						t.Fatalf("%s is used by %s, %s by %s", other, by, k, uid)
					}
				}
				user[k] = uid
			}
		}
	}
	has := map[string]map[gpu.DeviceKey]string{}
	for uid, containers := range w.memory {
		for _, given := range containers {
			for _, k := range given.keys {
				if has[given.resource] == nil {
					has[given.resource] = map[gpu.DeviceKey]string{}
				}
				if by, twice := has[given.resource][k]; twice && by != uid && w.active(by) && w.active(uid) {
					t.Fatalf("%s was granted to %s and to %s", k, by, uid)
				}
				has[given.resource][k] = uid
			}
		}
	}
	holdings := w.ledger.Holdings()
	for i, a := range holdings {
		for _, b := range holdings[:i] {
			if a.Key.Overlaps(b.Key) && (a.Holder.PodUID != b.Holder.PodUID || a.Pending) {
				t.Fatalf("held at the same time: %v; %v", a, b)
			}
		}
	}
}

func (w *twin) active(uid string) bool { return w.pods[uid] != nil && w.pods[uid].active }

func TestTwin(t *testing.T) {
	for name, sizes := range map[string]bool{"one size": false, "sizes": true} {
		t.Run(name, func(t *testing.T) {
			dir, run := t.TempDir(), 0
			rapid.Check(t, func(t *rapid.T) {
				run++
				w := newTwin(t, filepath.Join(dir, fmt.Sprint(run)), sizes)
				defer func() { w.ledger.Close() }()
				actions := map[string]func(*rapid.T){
					"new pod": w.newPod, "start": w.startNext, "start again": w.startNext, "exit": w.exit,
					"delete": w.deleteGently, "delete by force": w.deleteByForce,
					"look": func(*rapid.T) { w.look() }, "time": func(*rapid.T) { w.clock.SetTime(w.clock.Now().Add(20 * time.Second)) },
					"kubelet": w.restartKubelet, "agent": w.restartAgent,
					"checkpoint vanishes": w.loseCheckpoint, "API news": w.news, "API lost": w.loseAPI, "list": w.list,
					"": w.check,
				}
				if sizes {
					actions["reconfigure"], actions["device list"] = w.reconfigure, w.listDevices
				}
				t.Repeat(actions)
				w.end()
			})
		})
	}
}

// end ends all pods, after which no device may be held.
func (w *twin) end() {
	clear(w.pods)
	w.away = false
	w.forgetInactive()
	w.write()
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.look()
	if left := w.ledger.Holdings(); len(left) > 0 {
		w.t.Fatalf("left over: %v", left)
	}
	for i := range w.layouts {
		for _, layout := range twinLayouts {
			for _, device := range layout.devices {
				if block, blocked := w.ledger.BlockedBy(layout.resource, key(fmt.Sprintf("G%d%s", i, device))); blocked {
					w.t.Fatalf("still blocked: %v", block)
				}
			}
		}
	}
}
