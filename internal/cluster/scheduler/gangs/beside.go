package gangs

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/claims"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	core "github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// job is a gang that is planned beside the scheduling cycles, in a goroutine with a copy of the state of the cluster, since that takes
// more than Limits.CycleSteps. There is one at a time. A later cycle of a member checks the plan against the state that it has, and plans
// those members again whose places were taken in between.
type job struct {
	gang  *gang
	began time.Time
	// stopped ends the planning: the gang has gone.
	stopped atomic.Bool

	// The lock of the registry guards the rest. done is true once there is a result, ended is since when.
	done  bool
	ended time.Time
	// missed is true where devices have become free since it began, which the version of the model does not tell.
	missed bool
	// q is what was asked, with the plan, or what has to end for the gang. reason says why there is no plan.
	q      *attempt
	reason string
	err    error
}

// says is why a member waits while its gang is planned.
func (j *job) says() string {
	return fmt.Sprintf("berth: gang %s is being planned: %d members, since %s", j.gang.name, len(j.q.view.Members), j.began.UTC().Format(time.RFC3339))
}

// begin has a gang planned beside the scheduling cycles, and returns why its members wait.
func (p *Plugin) begin(g *gang, q *attempt, nodes []fwk.NodeInfo) string {
	r := p.gangs
	r.mu.Lock()
	switch {
	case r.gangs[q.key] != g:
		r.mu.Unlock()
		return unknownGang // It has ended since it was asked about.
	case r.job != nil:
		defer r.mu.Unlock()
		r.queueJob(g)
		return r.queuedText(g)
	}
	j := r.startJob(g, q)
	r.mu.Unlock()
	beside, copies := p.copy(nodes)
	text := j.says()
	p.start(func() { beside.run(j, copies) })
	return text
}

// waitsForJob returns why a member waits whose gang is planned beside the cycles; the text is empty once there is a result.
func (r *registry) waitsForJob(g *gang) (text string, waits bool) {
	switch {
	case g.stage == stagePlanning && g.job.done:
		return "", true
	case g.stage == stagePlanning:
		return g.job.says(), true
	case g.stage == stageQueued && r.job != nil:
		return r.queuedText(g), true
	}
	return "", false
}

// queuedText is why a member waits whose gang is planned after another one.
func (r *registry) queuedText(g *gang) string {
	return fmt.Sprintf("berth: gang %s is planned once gang %s is", g.name, r.job.gang.name)
}

// copy returns a plugin that plans on a copy of the present state, and the nodes of that. The scheduler changes its own in place.
func (p *Plugin) copy(nodes []fwk.NodeInfo) (*Plugin, []fwk.NodeInfo) {
	m, policy := p.model.Copy(), p.policy()
	c := &Plugin{
		handle:  p.handle,
		model:   m,
		gangs:   p.gangs,
		planner: gangplanner.Planner{Model: m, Devices: p.planner.Devices},
		policy:  func() string { return policy },
		ended:   p.ended,
	}
	if p.planner.Claims != nil {
		c.planner.Claims = claims.New(p.handle.SharedDRAManager(), m)
	}
	copies := make([]fwk.NodeInfo, len(nodes))
	for i, node := range nodes {
		copies[i] = node.Snapshot()
	}
	return c, copies
}

// run plans the gang of a job, and looks for pods that have to end for it if it does not fit.
func (p *Plugin) run(j *job, nodes []fwk.NodeInfo) {
	r := p.gangs

	// Plan the gang with the larger budget, and look for what has to end for it.
	q := *j.q
	q.Nodes, q.Beside = nodes, true
	q.Budget = core.Budget{Steps: r.limits.BesideSteps, Rough: true, Stop: func() bool {
		runtime.Gosched() // The scheduling cycle goes first where there is one core.
		return j.stopped.Load() || p.ended.Err() != nil
	}}
	_, text, err := p.plan(&q)
	took := r.clock.Since(j.began)
	switch {
	case errors.Is(err, core.ErrSteps):
		err, text = nil, fmt.Sprintf("berth: gang %s waits as a whole: it could not be planned within %v: let more of its members request the same", q.key, took.Round(time.Second))
	case err == nil && q.short:
		q.search, err = p.lookIn(&q, nodes)
	}
	q.pause = pauseAfter(took)

	// Publish the result, and bring back the member that uses it.
	r.mu.Lock()
	j.done, j.ended, j.q, j.reason, j.err = true, r.clock.Now(), &q, text, err
	var list []*v1.Pod
	if j.gang.job == j {
		list = r.users(j)
	}
	r.mu.Unlock()
	activate(p.handle, list)
}

// lookIn is look in a copy of the state. What could not be decided in time is as if there was nothing.
func (p *Plugin) lookIn(q *attempt, nodes []fwk.NodeInfo) (*search, error) {
	began, f := p.gangs.clock.Now(), frozen{}
	for _, node := range nodes {
		f[node.Node().Name] = node
	}
	s, err := p.look(q, nodes, f)
	switch {
	case errors.Is(err, core.ErrSteps):
		return &search{reserve: true, took: p.gangs.clock.Since(began)}, nil
	case err == nil && s == nil:
		return &search{}, nil
	}
	return s, err
}

// frozen are nodes as they were, by name.
type frozen map[string]fwk.NodeInfo

func (f frozen) usable(name string) bool { return isUsable(f[name]) }

func (f frozen) has(name string, pod types.UID) bool { return hasPod(f[name], pod) }

// conclude uses the result of a job in the cycle of a member, as decide does.
func (p *Plugin) conclude(pod *v1.Pod, g *gang, j *job, nodes []fwk.NodeInfo) (node, text string, asked *attempt, err error) {
	r := p.gangs

	// Leave the result to a member that gets a node by it.
	r.mu.Lock()
	if users := r.users(j); !j.places(pod) && len(users) > 0 && j.places(users[0]) {
		r.mu.Unlock()
		activate(p.handle, users)
		return "", fmt.Sprintf("gang %s has its least number of members, %d, and there is capacity for others only", g.name, j.q.view.Min), nil, nil
	}
	r.mu.Unlock()

	// Whatever comes of the result, it is used now.
	defer func() { activate(p.handle, p.finishJob(j)) }()
	if j.err != nil {
		return "", "", nil, j.err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := r.outdated(g, j.q); text != "" {
		return "", text, nil, nil
	}

	// There is no plan: keep why.
	if j.q.result == nil || len(j.q.result.Places) == 0 {
		if _, text = r.answer(g, pod, j.q, nil, j.reason); j.q.short {
			asked = j.q
		}
		if j.missed || j.q.version != p.model.Version() || j.q.changes != g.changes {
			g.wakeAt(later(r.clock.Now(), g.next)) // What has changed in between woke it when it could not be planned.
		}
		return "", text, asked, nil
	}

	// There is a plan: check it against the present state, without the lock, and keep it if its places are still free.
	q := r.ask(g, corev1helpers.PodPriority(pod), p.model.Version(), nodes)
	r.mu.Unlock()
	renewed, kept, err := p.planner.Renew(p.questionOf(&q, q.view), j.q.result)
	r.mu.Lock()
	if err != nil {
		return "", "", nil, err
	}
	if text := r.outdated(g, j.q); text != "" {
		return "", text, nil, nil
	}
	if renewed == nil {
		return "", r.overtaken(g, j, kept), nil, nil
	}
	node, text = r.answer(g, pod, &q, renewed.Places, "")
	return node, text, nil, nil
}

// outdated returns why the result of a question is of no use: the gang is another one now. Members that have come in between are planned
// later, but where segments depend on who there is.
func (r *registry) outdated(g *gang, q *attempt) string {
	if r.gangs[q.key] != g {
		return unknownGang
	}
	if g.changes == q.changes && maps.Equal(g.nodes(), q.Bound) || r.covers(g, q) {
		return ""
	}
	g.wakeAt(r.clock.Now())
	return "the gang has changed while it was planned"
}

// covers tells whether the members of a question are still as they were.
func (r *registry) covers(g *gang, q *attempt) bool {
	view := r.build(g)
	same := view.Min == q.view.Min && view.Done == q.view.Done && view.Topology == q.view.Topology && maps.Equal(g.nodes(), q.Bound)
	if !ready(view) || !same || view.Topology.SegmentSize > 0 {
		return false
	}
	for _, old := range q.view.Members {
		now := g.pods[old.UID]
		if now == nil || !sameContent(old, now) || q.Bound[old.UID] == "" && g.absent[old.UID] && !q.absent[old.UID] {
			return false
		}
	}
	return true
}

// finishJob ends a job whose result was used, and returns the members that can have their gangs planned now.
func (p *Plugin) finishJob(j *job) []*v1.Pod {
	r := p.gangs
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endJob(j)
	return r.nextJob()
}

// mostNext is how many gangs are brought back when one of them can be planned: other plugins may keep the first ones from it.
const mostNext = 8

// nextJob returns the members that plan the first gangs in line for a job. The caller holds the lock.
func (r *registry) nextJob() (list []*v1.Pod) {
	if r.job != nil {
		return nil
	}
	var line []*gang
	for _, g := range r.gangs {
		if g.stage != stageQueued {
			continue
		}
		if r.build(g); !g.ready || len(r.planner(g)) == 0 {
			r.dequeueJob(g) // It cannot be planned now.
			continue
		}
		line = append(line, g)
	}
	slices.SortFunc(line, func(a, b *gang) int {
		if r.precedes(a, b) {
			return -1
		}
		return 1
	})
	for _, g := range line[:min(len(line), mostNext)] {
		list = append(list, r.planner(g)...)
	}
	return list
}

// planner returns a member of a gang that can plan it.
func (r *registry) planner(g *gang) []*v1.Pod {
	if list := r.leader(g); len(list) > 0 {
		return list
	}
	if list := r.pending(g); g.plan == nil && len(list) > 0 {
		return list[:1] // None came when it was its turn.
	}
	return nil
}

// users returns a member that uses the result of a job: one that gets a node by it, if there is a plan.
func (r *registry) users(j *job) []*v1.Pod {
	for _, pod := range j.q.view.Members {
		if now := j.gang.pods[pod.UID]; now != nil && j.places(pod) && j.gang.waits(now) && !j.gang.absent[pod.UID] {
			return []*v1.Pod{now}
		}
	}
	return r.planner(j.gang)
}

// places tells whether a member gets a node by the result.
func (j *job) places(pod *v1.Pod) bool {
	return j.q.result != nil && j.q.result.Places[pod.UID].Node != ""
}

// lateJob brings the member back that uses the result of a job: the queue loses one that is brought back in its own cycle. A result that
// none uses for long is dropped, and so is that of a gang without its least number of members.
func (r *registry) lateJob(g *gang, now time.Time) []*v1.Pod {
	j := g.job
	if j == nil {
		return nil
	}
	r.build(g)
	switch {
	case !g.ready:
		r.abandon(g)
	case j.done && now.Sub(j.ended) > r.limits.Reserve:
		r.abandon(g)
		g.wakeAt(now)
	case j.done:
		return r.users(j)
	}
	return nil
}
