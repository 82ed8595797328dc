package gangs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// shortage is that a complete gang does not fit, and what is done about it. The methods of shortage begin and end it, grant and revoke
// write the reservation, and the times and the count are written where a reservation or a preemption is refused, made or over: take,
// takesTurn, review, evict and mayPreempt.
type shortage struct {
	// short is since when the gang does not fit; zero when that is not so.
	short time.Time
	// reservation is what is reserved for the gang, nil for nothing.
	reservation *reservation
	// reserveAfter is until when the gang gets no reservation, since it does not fit even when all pods have ended that end by themselves,
	// or it is not its turn. served is when its last turn was over.
	reserveAfter time.Time
	served       time.Time
	// preemptAfter is when the gang can end pods at the earliest, and preemptions counts how often it did.
	preemptAfter time.Time
	preemptions  int
}

// setShort notes whether a gang that was refused does not fit: its shortage began at the first such refusal in a row.
func (s *shortage) setShort(short bool, now time.Time) {
	switch {
	case !short:
		s.short = time.Time{}
	case s.short.IsZero():
		s.short = now
	}
}

// endShortage notes that the gang fits, or is not complete. A reservation ends with revoke.
func (s *shortage) endShortage() { s.short = time.Time{} }

// endPreemptions notes that the gang has its least number of members on nodes.
func (s *shortage) endPreemptions() {
	s.endShortage()
	s.preemptAfter, s.preemptions = time.Time{}, 0
}

// line is what the reservations of all gangs share.
type line struct {
	// first is the gang with the reservation of the first one in line, nil for none. turn is when the last turn of reservations began whose
	// start is not known.
	first *gang
	turn  time.Time
	// searchAfter is when pods that have to end are searched again at the earliest.
	searchAfter time.Time
	// floor is that of the state of the nodes in which it was asked for last.
	floor *floor
}

// reservation is places on nodes for a gang that does not fit yet, since pods on these nodes have to end first.
type reservation struct {
	// awaited are the pods that have to end, and their nodes.
	awaited map[types.UID]string
	// start is when the last of them ends at the latest, by the API server's clock; zero where that is not known.
	start time.Time
	// preempts is true where the pods are ended for the gang.
	preempts bool
	// until is when the reservation ends by itself.
	until time.Time
	// confirmed is when it was made, or found to be the best one last.
	confirmed time.Time
	// announcement says when the gang starts, in a form that follows the reason why it waits.
	announcement string
	// places are the keys of its holds, nodes how many nodes these are on.
	places []types.UID
	nodes  int
}

// awaits tells whether a pod on a node of the reservation ends before its start. The time is that of the API server's clock.
func (res *reservation) awaits(pod *v1.Pod, now time.Time) bool {
	if res.awaited[pod.UID] != "" {
		return true
	}
	end, known := endOf(pod, now)
	return known && res.admits(end)
}

// admits tells whether what ends at a time, zero for one that is not known, ends before the start.
func (res *reservation) admits(end time.Time) bool {
	return !res.start.IsZero() && !end.IsZero() && !end.After(res.start)
}

// endOf returns when a pod that runs ends at the latest, by the API server's clock, zero if that is not known: when its
// activeDeadlineSeconds are over, and containers have had the time to end. The result is false for a pod that does not end by itself, and
// for one that should have ended long ago.
func endOf(pod *v1.Pod, now time.Time) (end time.Time, ends bool) {
	switch {
	case pod.DeletionTimestamp != nil:
		end = pod.DeletionTimestamp.Time
	case pod.Spec.ActiveDeadlineSeconds == nil:
		return time.Time{}, pod.Spec.RestartPolicy == v1.RestartPolicyNever || pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure
	default:
		end = startOf(pod, now).Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds)*time.Second + grace(pod))
	}
	return end, now.Sub(end) <= longOver
}

// startOf returns when the activeDeadlineSeconds of a pod began. The kubelet's clock says when it has seen the pod first: where that is
// before the API server bound the pod, the clock of the node is behind.
func startOf(pod *v1.Pod, now time.Time) time.Time {
	if pod.Status.StartTime == nil {
		return now
	}
	start := pod.Status.StartTime.Time
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodScheduled && c.Status == v1.ConditionTrue {
			start = later(start, c.LastTransitionTime.Time)
		}
	}
	return start
}

// grace returns how long the containers of a pod have to end.
func grace(pod *v1.Pod) time.Duration {
	seconds := int64(v1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(min(seconds, int64(mostGrace/time.Second))) * time.Second
}

// mostGrace bounds how long a pod that ends is waited for: a longer time says nothing.
const mostGrace = 24 * time.Hour

// grant keeps a reservation of a gang in place of the one that it has.
func (r *registry) grant(g *gang, res *reservation, plan *gangplanner.Plan) {
	r.revoke(g)
	if r.line.first != nil && !res.preempts {
		r.revoke(r.line.first)
	}
	nodes := map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(plan.Places)) {
		place := plan.Places[uid]
		made := &hold{
			pod:         "reserved/" + uid,
			gang:        g.key,
			node:        place.Node,
			requests:    place.Requests,
			amounts:     gangplan.Amounts(place.Pod),
			reservation: res,
			priority:    corev1helpers.PodPriority(place.Pod),
		}
		r.holds.add(made)
		res.places = append(res.places, made.pod)
		nodes[place.Node] = true
	}
	res.nodes = len(nodes)
	g.reservation = res
	if !res.preempts {
		r.line.first = g
	}
}

// revoke ends the reservation of a gang.
func (r *registry) revoke(g *gang) {
	if g.reservation == nil {
		return
	}
	for _, place := range g.reservation.places {
		r.holds.remove(place)
	}
	for uid := range g.reservation.awaited {
		if e := r.errands.evictions[uid]; e != nil && e.key == g.key {
			delete(r.errands.evictions, uid)
		}
	}
	g.reservation = nil
	if r.line.first == g {
		r.line.first = nil
	}
}

// review ends a reservation that is of no use any more: that of a gang that does not wait, and one whose time is over.
func (r *registry) review(g *gang, now time.Time) {
	if !g.ready {
		g.endShortage()
	}
	if res := g.reservation; res != nil && (!g.ready || g.short.IsZero() || now.After(res.until)) {
		r.revoke(g)
		if !res.preempts && res.start.IsZero() {
			g.served = now // Other gangs come first in the next turn.
		}
		if g.ready {
			g.wakeAt(now)
		}
	}
}

// precedes tells whether a gang gets a reservation before another one: one of a higher priority, and of those the one that was complete
// first. After a turn a gang is the last one in line.
func (r *registry) precedes(a, b *gang) bool {
	return cmp.Or(cmp.Compare(b.priority(), a.priority()), a.place().Compare(b.place()), cmp.Compare(a.name, b.name)) < 0
}

// priority is that of the members.
func (g *gang) priority() int32 {
	for _, pod := range g.pods {
		return corev1helpers.PodPriority(pod) // All have the same.
	}
	return 0
}

// mayReserve tells whether a reservation for the first gang in line can be sought for a gang that does not fit; it has the gang planned
// again when it can, if that is a matter of time. A gang that has it can get a better one now and then, and when nodes of it cannot be used
// any more.
func (r *registry) mayReserve(g *gang, now time.Time, c cluster) bool {
	if r.limits.Starve < 0 || g.short.IsZero() || r.line.first != nil && r.line.first != g && !r.precedes(g, r.line.first) {
		return false
	}
	earliest := later(g.short.Add(r.limits.Starve), g.reserveAfter, r.line.searchAfter)
	if res := g.reservation; res != nil {
		if res.preempts {
			return false
		}
		if r.over(res, c) {
			r.revoke(g)
		} else if now.Before(res.confirmed.Add(r.limits.Hopeless)) {
			return false
		}
	}
	if now.Before(earliest) {
		g.wakeAt(earliest)
		return false
	}
	return true
}

// over tells whether a reservation is of no use to a gang that does not fit: all pods have ended for which it waits, or a node cannot be
// used any more.
func (r *registry) over(res *reservation, c cluster) bool {
	for _, place := range res.places {
		if held := r.holds.byPod[place]; held == nil || !c.usable(held.node) {
			return true
		}
	}
	for uid, node := range res.awaited {
		if c.has(node, uid) && !r.stuck(uid) {
			return false
		}
	}
	return true
}

// ends returns when a reservation ends by itself, by the API server's clock.
func (r *registry) ends(res *reservation) string {
	until, _ := r.server.serverTimeOf(res.until)
	return until.UTC().Format(time.RFC3339)
}

// cluster is what the scheduler knows of nodes: whether pods can be placed on one at all, and whether a pod is there that may end.
type cluster interface {
	usable(node string) bool
	has(node string, pod types.UID) bool
}

// mayPreempt tells whether a gang that does not fit can end pods now.
func (r *registry) mayPreempt(g *gang, now time.Time, c cluster) bool {
	if res := g.reservation; res != nil && res.preempts {
		if !r.over(res, c) {
			return false
		}
		r.revoke(g)
		if g.preemptions > 0 { // Not where it has waited only for pods that were being deleted already.
			g.preemptAfter = now.Add(r.limits.Preempt << min(g.preemptions-1, mostDoublings))
		}
	}
	for _, pod := range r.build(g).Members {
		if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
			return false
		}
	}
	if earliest := later(g.preemptAfter, r.line.searchAfter); now.Before(earliest) {
		g.wakeAt(earliest)
		return false
	}
	return true
}

func later(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// reason says why a gang waits, and for what, if something is reserved for it.
func (g *gang) reason(text string) string {
	if g.reservation == nil {
		return text
	}
	return text + "; " + g.reservation.announcement
}

// starts says when a gang with a reservation starts, for the pods that have to end.
func (r *registry) starts(res *reservation, pods []*v1.Pod) string {
	places := "places on " + phrase.Count(res.nodes, "node") + " are reserved for it until " + r.ends(res) + ", and it starts "
	if !res.preempts && !res.start.IsZero() {
		return places + "at the latest at " + res.start.UTC().Format(time.RFC3339)
	}
	named := slices.Clone(pods)
	if !res.preempts {
		named = slices.DeleteFunc(named, func(pod *v1.Pod) bool {
			_, known := r.knownEnd(pod)
			return known
		})
	}
	first := slices.MinFunc(named, byName)
	such := first.Namespace + "/" + first.Name
	if len(named) > 1 {
		such = fmt.Sprintf("%s and %s", such, phrase.Count(len(named)-1, "other pod"))
	}
	if res.preempts {
		return places + fmt.Sprintf("when the pods have ended that end for it: %s", such)
	}
	return places + fmt.Sprintf("when the pods there have ended, of which some have no activeDeadlineSeconds, or of more than a week, or should have ended by them: %s", such)
}

// keeps says for whom a place is held, in words that follow what is held. The caller holds the lock.
func (r *registry) keeps(held *hold) string {
	if held.reservation == nil {
		return "held for gang " + held.gang.String()
	}
	made := gangplan.Reserved{Gang: held.gang.String(), Priority: held.priority, Until: r.ends(held.reservation)}
	if start := held.reservation.start; !start.IsZero() {
		made.Before = start.UTC().Format(time.RFC3339)
	}
	return made.String()
}

// besides says what is reserved for others where a gang does not fit, in words that follow the reason; empty where nothing is.
func (r *registry) besides(g *gang) string {
	places := func(yield func(*hold) bool) {
		for _, held := range r.holds.byPod {
			if held.reservation != nil && !yield(held) {
				return
			}
		}
	}
	if held := firstOf(places, &seeker{key: g.key, priority: g.priority()}); held != nil {
		return "; places are " + r.keeps(held)
	}
	return ""
}
