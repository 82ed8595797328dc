package gangs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// broken returns what is set of a gang beside what belongs to its stage and presence, nil for nothing.
func (r *registry) broken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []error
	wrong := func(of string, format string, args ...any) {
		all = append(all, errors.New(of+": "+fmt.Sprintf(format, args...)))
	}
	for _, g := range r.gangs {
		named := stageNames[g.stage]
		if got, want := g.refusal != nil, g.stage == stageRefused; got != want {
			wrong(g.name, "%s: a refusal is set: %v", named, got)
		}
		if got, want := g.job != nil, g.stage == stagePlanning; got != want {
			wrong(g.name, "%s: a job is set: %v", named, got)
		}
		if got, want := g.plan != nil, g.stage == stagePlacing || g.stage == stageBinding; got != want {
			wrong(g.name, "%s: a plan is set: %v", named, got)
		}
		if g.kept.overtakings+len(g.kept.holds) > 0 && !slices.Contains([]stage{stageUnplanned, stageQueued, stagePlanning}, g.stage) {
			wrong(g.name, "%s: %+v are kept", named, g.kept)
		}
		if p := g.plan; p != nil {
			if len(p.nodes) == 0 || p.permitted != (g.stage == stageBinding) {
				wrong(g.name, "%s: a plan of %d members, permitted %v", named, len(p.nodes), p.permitted)
			}
			if p.permitted && len(p.preparing)+len(p.replaced) > 0 {
				wrong(g.name, "%s: %v are prepared, %d holds are replaced", named, p.preparing, len(p.replaced))
			}
			for uid, node := range p.nodes {
				if held := r.holds.byPod[uid]; !p.reserved[uid] && (held == nil || held.node != node) {
					wrong(g.name, "%s: %s is neither reserved nor held on %s", named, uid, node)
				}
			}
		}
		if !g.partialSince.IsZero() != (g.presence == presencePartial) {
			wrong(g.name, "presence %d since %v", g.presence, g.partialSince)
		}
		if res := g.reservation; res != nil && !res.preempts && r.line.first != g {
			wrong(g.name, "it has a reservation and is not the first one in line")
		}
	}
	if j := r.job; j != nil && (j.gang.job != j || r.gangs[j.gang.key] != j.gang) {
		wrong(j.gang.name, "it is planned no longer, and others wait for that")
	}
	if g := r.line.first; g != nil && g.reservation == nil {
		wrong(g.name, "it is the first one in line and has no reservation")
	}
	return errors.Join(all...)
}

var stageNames = map[stage]string{
	stageUnplanned: "unplanned", stageRefused: "refused", stageQueued: "queued", stagePlanning: "planning", stagePlacing: "placing", stageBinding: "binding",
}

// mustStand panics where a gang has what does not belong to its stage.
func (w *world) mustStand() {
	if err := w.broken(); err != nil {
		panic(err)
	}
}

// These are the events of the registry. Each test checks its gangs after them.

func (w *world) set(pod *v1.Pod) released {
	defer w.mustStand()
	return w.registry.set(pod)
}

func (w *world) remove(pod *v1.Pod) released {
	defer w.mustStand()
	return w.registry.remove(pod)
}

func (w *world) overdue() ([]released, []partly) {
	defer w.mustStand()
	return w.registry.overdue()
}

func (w *world) reserve(pod *v1.Pod, node string) ([]*v1.Pod, bool) {
	defer w.mustStand()
	return w.registry.reserve(pod, node)
}

func (w *world) permit(pod *v1.Pod) ([]types.UID, bool, bool) {
	defer w.mustStand()
	return w.registry.permit(pod)
}

func (w *world) unreserve(pod *v1.Pod, node string, by *plan) released {
	defer w.mustStand()
	return w.registry.unreserve(pod, node, by)
}

func (w *world) bind(pod *v1.Pod, node string) []*v1.Pod {
	defer w.mustStand()
	return w.registry.bind(pod, node)
}

// to moves the gang train, of two members, to a stage.
func (w *world) to(t *testing.T, s stage) {
	t.Helper()
	for i := range 2 {
		w.set(pod(i, 2, ""))
	}
	q := &attempt{key: w.train().key, view: w.build(w.train())}
	switch s {
	case stageUnplanned:
	case stageRefused:
		w.registry.refuse(w.train(), &refusal{version: 1, when: start, reason: "too small"})
	case stageQueued:
		w.queueJob(w.train())
	case stagePlanning:
		w.startJob(w.train(), q)
	case stagePlacing:
		w.planned(t, "n0", pod(0, 2, ""), pod(1, 2, ""))
	case stageBinding:
		w.permitted(t, pod(0, 2, ""), pod(1, 2, ""))
	}
	if w.train().stage != s {
		t.Fatalf("the gang is %s", stageNames[w.train().stage])
	}
}

// TestStages: what happens to a gang moves it to a stage.
func TestStages(t *testing.T) {
	changed := pod(0, 2, "")
	changed.Annotations = map[string]string{"changed": "true"}
	events := map[string]func(t *testing.T, w *world){
		"a member changes":         func(_ *testing.T, w *world) { w.set(changed) },
		"a member is deleted":      func(_ *testing.T, w *world) { w.remove(pod(0, 2, "")) },
		"a member succeeds":        func(_ *testing.T, w *world) { p := pod(0, 2, ""); p.Status.Phase = v1.PodSucceeded; w.remove(p) },
		"a PodGroup changes":       func(_ *testing.T, w *world) { w.setGroup(w.train().key, nil) },
		"another plugin refuses":   func(_ *testing.T, w *world) { w.setAbsent(pod(0, 2, "")) },
		"the node is refused":      func(_ *testing.T, w *world) { w.replan(pod(0, 2, ""), nil, "refused") },
		"devices become free":      func(_ *testing.T, w *world) { w.renew(pod(0, 2, "")) },
		"its time to wake comes":   func(_ *testing.T, w *world) { w.train().wakeAt(start); w.overdue() },
		"no progress for long":     func(_ *testing.T, w *world) { w.clock.Step(w.limits.Reserve + 1); w.overdue() },
		"something binds a member": func(_ *testing.T, w *world) { w.set(pod(0, 2, "n7")) },
		"one is reserved":          func(_ *testing.T, w *world) { w.reserve(pod(0, 2, ""), "n0") },
		"all are reserved":         func(_ *testing.T, w *world) { reserveAll(w) },
		"one is refused at Permit": func(_ *testing.T, w *world) {
			w.reserve(pod(0, 2, ""), "n0")
			w.unreserve(pod(0, 2, ""), "n0", w.train().plan)
		},
		"one is bound":             func(_ *testing.T, w *world) { w.bind(pod(0, 2, ""), "n0") },
		"all are bound":            func(_ *testing.T, w *world) { w.bind(pod(0, 2, ""), "n0"); w.bind(pod(1, 2, ""), "n0") },
		"a binding fails":          func(_ *testing.T, w *world) { w.unreserve(pod(0, 2, ""), "n0", w.train().plan) },
		"a failed one is reserved": func(_ *testing.T, w *world) { failAndReserve(w) },
		"a higher gang preempts":   func(_ *testing.T, w *world) { w.reserve(pod(0, 2, ""), "n0"); w.preempted(pod(0, 2, "")) },
		"the plan is refused":      func(_ *testing.T, w *world) { w.answerAs(t, nil, "too small") },
		"the plan is made":         func(_ *testing.T, w *world) { w.answerAs(t, []*v1.Pod{pod(0, 2, ""), pod(1, 2, "")}, "") },
		"the plan is for others":   func(_ *testing.T, w *world) { w.answerAs(t, []*v1.Pod{pod(1, 2, "")}, "") },
		"its places were taken":    func(_ *testing.T, w *world) { w.overtake() },
		"the result is used":       func(_ *testing.T, w *world) { (&Plugin{gangs: w.registry}).finishJob(w.train().job) },
		"the job is free":          func(_ *testing.T, w *world) { w.nextJob() },
		"the members become gated": func(_ *testing.T, w *world) { gate(w) },
		"the result is not used":   func(_ *testing.T, w *world) { endPlanning(w); w.clock.Step(w.limits.Reserve + 1); w.overdue() },
		"a plan in a cycle begins": func(_ *testing.T, w *world) { w.dequeueJob(w.train()) },
		"a member is absent no more": func(_ *testing.T, w *world) {
			w.train().absent["uid-0"] = true
			w.nodeByStage(w.train(), pod(0, 2, ""), 1)
		},
	}
	tests := map[stage]map[string]stage{
		stageUnplanned: {
			"the plan is refused": stageRefused, "the plan is made": stagePlacing, "the plan is for others": stageUnplanned, "a member changes": stageUnplanned,
			"its time to wake comes": stageUnplanned, "devices become free": stageUnplanned, "one is bound": stageUnplanned,
		},
		stageRefused: {
			"a member changes": stageUnplanned, "a member is deleted": stageUnplanned, "a PodGroup changes": stageUnplanned, "another plugin refuses": stageUnplanned,
			"the node is refused": stageUnplanned, "devices become free": stageUnplanned, "its time to wake comes": stageUnplanned,
			"something binds a member": stageUnplanned, "a member is absent no more": stageUnplanned, "the plan is refused": stageRefused, "the plan is made": stagePlacing,
			"no progress for long": stageRefused, "a member succeeds": stageRefused,
		},
		stageQueued: {
			"the job is free": stageQueued, "the members become gated": stageUnplanned, "a plan in a cycle begins": stageUnplanned, "a member changes": stageQueued,
			"its time to wake comes": stageQueued,
		},
		stagePlanning: {
			"a member changes": stagePlanning, "devices become free": stagePlanning, "the result is used": stageUnplanned, "its places were taken": stageUnplanned,
			"the plan is refused": stageRefused, "the plan is made": stagePlacing, "the plan is for others": stageUnplanned, "the result is not used": stageUnplanned,
			"no progress for long": stagePlanning, "the members become gated": stageUnplanned,
		},
		stagePlacing: {
			"one is reserved": stagePlacing, "all are reserved": stageBinding, "one is refused at Permit": stageUnplanned, "a member is deleted": stageUnplanned,
			"another plugin refuses": stageUnplanned, "the node is refused": stageUnplanned, "no progress for long": stageUnplanned,
			"something binds a member": stageUnplanned, "a higher gang preempts": stageUnplanned, "a member changes": stagePlacing, "its time to wake comes": stagePlacing,
		},
		stageBinding: {
			"one is bound": stageBinding, "all are bound": stageUnplanned, "a binding fails": stageBinding, "a failed one is reserved": stageBinding,
			"a member is deleted": stageBinding, "another plugin refuses": stageBinding, "no progress for long": stageBinding,
			"something binds a member": stageBinding, "the node is refused": stageBinding,
		},
	}
	seen := map[string]bool{}
	for from, of := range tests {
		for event, want := range of {
			seen[event] = true
			t.Run(stageNames[from]+", "+event, func(t *testing.T) {
				w := newWorld()
				w.to(t, from)
				events[event](t, w)
				if got := w.train().stage; got != want {
					t.Errorf("the gang is %s; want %s", stageNames[got], stageNames[want])
				}
				w.mustStand()
			})
		}
	}
	for event := range events {
		if !seen[event] {
			t.Errorf("no stage is tried with: %s", event)
		}
	}
}

func reserveAll(w *world) {
	for i := range 2 {
		w.reserve(pod(i, 2, ""), "n0")
		w.permit(pod(i, 2, ""))
	}
}

// failAndReserve has the binding of a member fail when all others are bound, and the member reserved again.
func failAndReserve(w *world) {
	w.bind(pod(1, 2, ""), "n0")
	w.unreserve(pod(0, 2, ""), "n0", w.train().plan)
	w.reserve(pod(0, 2, ""), "n0")
}

// gate gives the members scheduling gates, so that none can be planned.
func gate(w *world) {
	for i := range 2 {
		p := pod(i, 2, "")
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "wait"}}
		w.set(p)
	}
	w.overdue()
}

func endPlanning(w *world) {
	w.train().job.done, w.train().job.ended = true, w.clock.Now()
}

// answerAs answers the question of the first member.
func (w *world) answerAs(t *testing.T, pods []*v1.Pod, text string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.train()
	planned := map[types.UID]gangplanner.Place{}
	for _, p := range pods {
		planned[p.UID] = gangplanner.Place{Pod: p, Node: "n0", Requests: w.requests(p)}
	}
	w.answer(g, pod(0, 2, ""), &attempt{key: g.key, view: w.build(g), short: true}, planned, text)
}

// overtake has all places but the first one of the job's plan taken.
func (w *world) overtake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.train()
	places := map[types.UID]gangplanner.Place{}
	for uid, p := range g.pods {
		places[uid] = gangplanner.Place{Pod: p, Node: "n0", Requests: w.requests(p)}
	}
	g.job.q.result = &gangplanner.Plan{Places: places}
	kept := maps.Clone(places)
	delete(kept, "uid-1")
	w.overtaken(g, g.job, kept)
}

// TestStageWalk: whatever happens in whatever order, a gang has only what belongs to its stage, and nothing is held for one that is gone.
func TestStageWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		const members = 3
		index := func() int { return rapid.IntRange(0, members-1).Draw(t, "member") }
		ofStage := func(do func(g *gang), stages ...stage) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if g := w.train(); g != nil && slices.Contains(stages, g.stage) {
				do(g)
			}
		}
		everybody := func(g *gang) map[types.UID]gangplanner.Place {
			places := map[types.UID]gangplanner.Place{}
			for _, p := range w.pending(g) {
				places[p.UID] = gangplanner.Place{Pod: p, Node: "n0", Requests: w.requests(p)}
			}
			return places
		}
		events := []func(){
			func() { w.set(pod(index(), 2, "")) },
			func() { w.set(pod(index(), 2, "n0")) },
			func() { w.remove(pod(index(), 2, rapid.SampledFrom([]string{"", "n0"}).Draw(t, "node"))) },
			func() { w.setAbsent(pod(index(), 2, "")) },
			func() { w.replan(pod(index(), 2, ""), nil, "refused") },
			func() { w.renew(pod(index(), 2, "")) },
			func() { w.reserve(pod(index(), 2, ""), "n0") },
			func() { w.permit(pod(index(), 2, "")) },
			func() { w.bind(pod(index(), 2, ""), "n0") },
			func() {
				if g := w.train(); g != nil {
					w.unreserve(pod(index(), 2, ""), "n0", g.plan)
				}
			},
			func() {
				ofStage(func(g *gang) {
					if places := everybody(g); len(places) > 0 {
						w.adopt(g, places)
					}
				}, stageUnplanned, stageRefused, stageQueued, stagePlanning)
			},
			func() {
				ofStage(func(g *gang) { w.registry.refuse(g, &refusal{}) }, stageUnplanned, stageRefused, stagePlanning)
			},
			func() { ofStage(w.queueJob, stageUnplanned, stageRefused) },
			func() {
				ofStage(func(g *gang) {
					if w.job == nil {
						w.startJob(g, &attempt{key: g.key, view: w.build(g)})
					}
				}, stageUnplanned, stageRefused)
			},
			func() { ofStage(func(g *gang) { g.job.done, g.job.ended = true, w.clock.Now() }, stagePlanning) },
			func() {
				ofStage(func(g *gang) {
					g.job.q.result = &gangplanner.Plan{Places: everybody(g)}
					w.overtaken(g, g.job, g.job.q.result.Places)
				}, stagePlanning)
			},
			func() { w.overdue() },
			func() {
				w.clock.Step(rapid.SampledFrom([]time.Duration{time.Second, w.limits.Reserve, w.limits.Lost}).Draw(t, "time"))
				w.overdue()
			},
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			events[rapid.IntRange(0, len(events)-1).Draw(t, "event")]()
			if err := w.broken(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range members {
			w.remove(pod(i, 2, ""))
		}
		if held := w.heldOn(); w.train() != nil || held != "" || w.job != nil {
			t.Fatalf("the gang has ended: %v, held on %q, job %v", w.train() == nil, held, w.job != nil)
		}
	})
}
