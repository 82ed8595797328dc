package gangs

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
)

// stage is how far a gang is on its way from its pods to nodes.
type stage uint8

const (
	// stageUnplanned: the gang is planned when it is the turn of a member, as soon as it is complete and its backoff is over.
	stageUnplanned stage = iota
	// stageRefused: the last plan was refused, and the gang has not changed since.
	stageRefused
	// stageQueued: the gang is planned beside the scheduling cycles once another one was.
	stageQueued
	// stagePlanning: the gang is planned beside the scheduling cycles, or the result waits for the member that uses it.
	stagePlanning
	// stagePlacing: there is a plan, and not all of its members are reserved.
	stagePlacing
	// stageBinding: all members of the plan were reserved, and are being bound.
	stageBinding
)

// progress is the stage of a gang and what belongs to it: a field is set only in the stages that its comment names. The transitions below
// are all that write it.
type progress struct {
	stage stage
	// refusal says why the last plan was refused (stageRefused).
	refusal *refusal
	// job is the planning beside the cycles (stagePlanning).
	job *job
	// plan is where members go (stagePlacing, stageBinding).
	plan *plan
	// kept is what is left of a plan that was overtaken, until the next one (stageUnplanned, stageQueued, stagePlanning).
	kept keptPlaces
}

// refusal is why a gang did not fit, when, and for which state.
type refusal struct {
	version uint64
	freed   uint64
	when    time.Time
	reason  string
	// devices is true where claims and slices are part of the state.
	devices bool
}

// keptPlaces are places of a plan that are held for a gang although other places of the plan were taken.
type keptPlaces struct {
	// holds are the keys of the holds.
	holds []types.UID
	// overtakings is how many plans were overtaken in a row.
	overtakings int
}

// plan is where the members that have no node yet go.
type plan struct {
	nodes    map[types.UID]string
	reserved map[types.UID]bool
	// progress is when the last member was reserved, or prepared.
	progress time.Time
	// permitted is true in stageBinding and after it. decided is closed when the gang leaves stagePlacing.
	permitted bool
	decided   chan struct{}

	// The rest is used in stagePlacing only. shares is true where members of the plan share a ResourceClaim.
	shares bool
	// preparing are reserved members that are prepared although not all are reserved, see leaders.
	preparing map[types.UID]bool
	// replaced are the holds of lost members whose places the plan has.
	replaced []*hold
}

func newPlan(now time.Time) *plan {
	return &plan{
		nodes:     map[types.UID]string{},
		reserved:  map[types.UID]bool{},
		preparing: map[types.UID]bool{},
		progress:  now,
		decided:   make(chan struct{}),
	}
}

// enter moves a gang to a stage, and ends what belonged to the one before and is not part of the new one.
func (r *registry) enter(g *gang, next progress) {
	old := g.progress
	g.progress = next
	if old.job != nil {
		old.job.stopped.Store(true)
		if r.job == old.job {
			r.job = nil
		}
	}
	if old.plan != nil && old.plan != next.plan {
		for uid := range old.plan.nodes {
			r.holds.remove(uid)
		}
		for _, held := range old.plan.replaced {
			r.holds.add(held)
		}
		if !old.plan.permitted {
			close(old.plan.decided)
		}
	}
	if len(next.kept.holds) == 0 {
		for _, place := range old.kept.holds {
			r.holds.remove(place)
		}
	}
}

// forgetRefusal moves a refused gang to stageUnplanned: it is to be planned, not to be refused as before.
func (r *registry) forgetRefusal(g *gang) {
	if g.stage == stageRefused {
		r.enter(g, progress{stage: stageUnplanned})
	}
}

// refuse moves a gang to stageRefused.
func (r *registry) refuse(g *gang, why *refusal) {
	r.enter(g, progress{stage: stageRefused, refusal: why})
}

// queueJob moves a gang to stageQueued.
func (r *registry) queueJob(g *gang) {
	r.enter(g, progress{stage: stageQueued, kept: g.kept})
}

// dequeueJob moves a queued gang to stageUnplanned.
func (r *registry) dequeueJob(g *gang) {
	if g.stage == stageQueued {
		r.enter(g, progress{stage: stageUnplanned, kept: g.kept})
	}
}

// startJob moves a gang to stagePlanning.
func (r *registry) startJob(g *gang, q *attempt) *job {
	j := &job{gang: g, began: r.clock.Now(), q: q}
	r.enter(g, progress{stage: stagePlanning, job: j, kept: g.kept})
	r.job = j
	return j
}

// endJob moves the gang of a job to stageUnplanned, unless the use of the result has moved it elsewhere.
func (r *registry) endJob(j *job) {
	if j.gang.job == j {
		r.enter(j.gang, progress{stage: stageUnplanned, kept: j.gang.kept})
	}
}

// abandon moves a gang to stageUnplanned, whatever its stage is.
func (r *registry) abandon(g *gang) {
	r.enter(g, progress{stage: stageUnplanned})
}

// keptPrefix is before the UID of a member in what is held for it between two plans.
const keptPrefix = "planned/"

// overtaken moves a gang to stageUnplanned of whose plan places were taken while it was made, and returns why the gang waits. The places
// that are still free are held while it is planned again, so that it is not overtaken again and again. From the third time in a row on it
// waits before that.
func (r *registry) overtaken(g *gang, j *job, free map[types.UID]gangplanner.Place) string {
	kept := keptPlaces{overtakings: g.kept.overtakings + 1}
	r.enter(g, progress{stage: stageUnplanned})
	now := r.clock.Now()
	for uid, place := range free {
		held := &hold{
			pod:      keptPrefix + uid,
			gang:     g.key,
			node:     place.Node,
			requests: place.Requests,
			amounts:  gangplan.Amounts(place.Pod),
			until:    now.Add(r.limits.Reserve + 2*j.ended.Sub(j.began)),
		}
		r.holds.add(held)
		kept.holds = append(kept.holds, held.pod)
	}
	g.kept = kept
	g.next = now.Add(r.limits.retryAfter(kept.overtakings))
	g.wakeAt(g.next)
	places := len(j.q.result.Places)
	return fmt.Sprintf("berth: gang %s is planned again, since %d of its %d places were taken while it was planned", g.name, places-len(free), places)
}

// leaveToOthers moves a gang to stageUnplanned whose plan has no place for the member that asked: one of those with a place plans it again.
func (r *registry) leaveToOthers(g *gang) {
	r.enter(g, progress{stage: stageUnplanned, kept: keptPlaces{holds: g.kept.holds}})
}

// adopt moves a gang to stagePlacing, and holds the places of its plan.
func (r *registry) adopt(g *gang, planned map[types.UID]gangplanner.Place) {
	p := newPlan(r.clock.Now())
	r.enter(g, progress{stage: stagePlacing, plan: p})
	g.brought = p.progress
	g.endShortage()
	r.revoke(g)
	if len(g.nodes()) == 0 {
		g.setPresence(presenceNone)
		g.followed = true
	}
	var pods []*v1.Pod
	hasLost := true
	for uid, place := range planned {
		p.nodes[uid] = place.Node
		pods = append(pods, place.Pod)
		if hasLost {
			lost := r.holds.takeLost(g.key, place.Node)
			if hasLost = lost != nil; hasLost {
				p.replaced = append(p.replaced, lost)
			}
		}
		r.holds.add(&hold{
			pod:      uid,
			gang:     g.key,
			node:     place.Node,
			requests: place.Requests,
			amounts:  gangplan.Amounts(place.Pod),
		})
	}
	p.shares = gangplan.SharedClaim(pods) != ""
}

// startBinding moves a gang to stageBinding: all members of its plan are reserved.
func (r *registry) startBinding(g *gang) {
	p := g.plan
	r.enter(g, progress{stage: stageBinding, plan: p})
	g.failures = 0
	if !p.permitted {
		p.permitted, p.preparing, p.replaced = true, nil, nil
		close(p.decided)
	}
}

// bindAgain moves a gang to stageBinding whose plan is done: a member is reserved again whose binding had failed.
func (r *registry) bindAgain(g *gang) {
	p := newPlan(r.clock.Now())
	p.permitted, p.preparing = true, nil
	close(p.decided)
	r.enter(g, progress{stage: stageBinding, plan: p})
}

// finish takes a member from the plan, and moves the gang to stageUnplanned with the last one. It then returns the first of those that came
// too late for the plan.
func (r *registry) finish(g *gang, pod types.UID) []*v1.Pod {
	held := r.holds.byPod[pod] != nil
	r.holds.remove(pod)
	if g.plan == nil && held {
		return r.leader(g) // Its binding had failed, and others came to be planned before it was tried again.
	}
	if g.plan == nil || g.plan.nodes[pod] == "" {
		return nil
	}
	delete(g.plan.nodes, pod)
	delete(g.plan.reserved, pod)
	if len(g.plan.nodes) > 0 {
		return nil
	}
	r.enter(g, progress{stage: stageUnplanned})
	return r.leader(g)
}

// released are members whose reservation ends, and why.
type released struct {
	waiting []types.UID
	pods    []*v1.Pod
	reason  string
}

// add adds what else is released.
func (out *released) add(more released) {
	out.waiting, out.pods, out.reason = append(out.waiting, more.waiting...), append(out.pods, more.pods...), cmp.Or(more.reason, out.reason)
}

// release moves a gang from stagePlacing to stageUnplanned. The caller ends the wait of the members without the lock. From the third plan
// in a row on the gang waits before the next one, so that it does not take the place of others in the queue.
func (r *registry) release(g *gang, reason string) released {
	if g.stage != stagePlacing {
		return released{}
	}
	out := released{reason: r.numbered(errors.New(reason)).Error()}
	for uid := range g.plan.reserved {
		out.waiting = append(out.waiting, uid)
	}
	r.enter(g, progress{stage: stageUnplanned})
	if wait := g.planFailed(reason, r.clock.Now(), &r.limits); wait {
		g.wakeAt(g.next)
		return out
	}
	g.brought = r.clock.Now()
	out.pods = r.pending(g)
	return out
}
