package fleet

import (
	"cmp"
	"math"
	"slices"
)

// search looks for the best plans among all sets of victims.
type search struct {
	trial  *trial
	useful []int
	most   int
	// least is true where of plans with the same violations, priority and pods the first one will do.
	least bool
	plans []Plan
	// needs are empty where more victims can make the pod fit less.
	needs []need
	// looks counts how often walk asked whether all that is left is enough, stops how often it was not.
	looks int
	stops int
	sets  int // how many were tried
}

// walk tries all sets that the ended victims and those up to a position make, the less important ones first. What it leaves out has more
// violations, a higher priority or more pods than the plans that it has.
func (s *search) walk(last int) {
	for at := last; at >= 0; at-- {
		// Where all that is left is not enough, still less is not, either. It is not worth the time where that is rare.
		if at < last && len(s.needs) > 0 && s.looks < 8+4*s.stops {
			if s.looks++; !s.enough(at) {
				s.stops++
				return
			}
		}
		s.trial.end(s.useful[at])
		if !s.hopeless(0) {
			s.sets++
			score, ok := s.trial.fits()
			if ok {
				s.keep(s.trial.plan(score))
			}
			if (!ok || s.most > 1) && (ok || len(s.needs) == 0 || !s.hopeless(s.further())) {
				s.walk(at - 1)
			}
		}
		s.trial.resume()
	}
}

// enough tells whether the pod fits when all victims up to a position have ended, beside those that have.
func (s *search) enough(last int) bool {
	for at := last; at >= 0; at-- {
		s.trial.end(s.useful[at])
	}
	_, ok := s.trial.fits()
	for range last + 1 {
		s.trial.resume()
	}
	return ok
}

// hopeless tells whether neither the victims that have ended nor more of them can be one of the best plans, if so many further pods have
// to end.
func (s *search) hopeless(further int64) bool {
	if len(s.plans) < s.most {
		return false
	}
	now := Plan{Violations: s.trial.broken, Priority: math.MinInt32, Pods: int(further)}
	for _, i := range s.trial.ended {
		v := &s.trial.Victims[i]
		now.Priority, now.Pods = max(now.Priority, v.Priority), now.Pods+v.Pods
	}
	worse := now.compareEnded(&s.plans[len(s.plans)-1])
	return worse > 0 || worse == 0 && s.least
}

// further returns how many more pods have to end at least.
func (s *search) further() int64 {
	if len(s.plans) < s.most {
		return 0 // It is not asked yet.
	}
	n, pods := s.trial.node(), int64(0)
	for i := range s.needs {
		pods = max(pods, s.needs[i].further(n))
	}
	return pods
}

// need is a thing of which the pod needs a sum: CPU, memory, devices of a resource.
type need struct {
	want int64
	free func(*Node) int64
	// most is what the victim has that has most for each of its pods.
	most int64
	pods int64
}

// needs returns what the pod needs, with the victims that have most of it.
func (t *trial) needs(useful []int) []need {
	list := []need{{free: func(n *Node) int64 { return n.FreeCPU }}, {free: func(n *Node) int64 { return n.FreeMemory }}}
	has := []func(int) int64{func(v int) int64 { return t.Victims[v].CPU }, func(v int) int64 { return t.Victims[v].Memory }}
	at := map[string]int{}
	for i := range t.Requests {
		s := &t.Requests[i]
		list[0].want += s.CPU
		list[1].want += s.Memory
		if s.GPUs == 0 {
			continue
		}
		k, known := at[s.Resource]
		if !known {
			k = len(list)
			at[s.Resource] = k
			list = append(list, need{free: func(n *Node) int64 { return count(n, s).free }})
			has = append(has, func(v int) int64 { return t.atMost(v, s) })
		}
		list[k].want += int64(s.GPUs)
	}
	for k := range list {
		for _, v := range useful {
			if amount, pods := has[k](v), int64(t.Victims[v].Pods); list[k].pods == 0 || amount*list[k].pods > list[k].most*pods {
				list[k].most, list[k].pods = amount, pods
			}
		}
	}
	return list
}

// further returns how many pods have to end at least until a node has enough: the largest number if that is never so.
func (d *need) further(n *Node) int64 {
	missing := d.want - d.free(n)
	switch {
	case missing <= 0:
		return 0
	case d.most == 0:
		return math.MaxInt32
	}
	return (missing*d.pods + d.most - 1) / d.most
}

// atMost returns how many devices for a request are free at most once a victim has ended, beside those that are.
func (t *trial) atMost(victim int, s *Shape) int64 {
	var sum int64
	for _, h := range t.heldBy[victim] {
		held := &t.Held[h]
		for i := range held.GPUs.All() {
			if g := &t.Node.GPUs[i]; s.wants(g) && g.State.allocatable() {
				unit := s.Of(g)
				sum += int64((cmp.Or(held.Amount, unit) + unit - 1) / unit)
			}
		}
	}
	return sum
}

func (s *search) keep(plan Plan) {
	at, _ := slices.BinarySearchFunc(s.plans, plan, func(a, b Plan) int { return a.compare(&b) })
	s.plans = slices.Insert(s.plans, at, plan)
	if len(s.plans) > s.most {
		s.plans = s.plans[:s.most]
	}
}

// cover returns one plan among many victims, without which the pod fits when all have ended.
func cover(p *Preemption, useful []int) Plan {
	pool := lowest(p, spared(p, useful))
	t := newTrial(p)
	for {
		if _, ok := t.fits(); ok {
			break
		}
		next, found := t.largest(pool)
		if !found {
			// What lacks is not a sum: a claim that several pods share, or bandwidth.
			for _, i := range pool {
				if !slices.Contains(t.ended, i) {
					t.end(i)
				}
			}
			break
		}
		t.end(next)
	}
	victims := reprieve(p, slices.Sorted(slices.Values(t.ended)), func(int) bool { return true })
	plan, _ := p.Evaluate(victims)
	return plan
}

// spared returns the victims without those that violate a budget, as far as the pod fits then.
func spared(p *Preemption, victims []int) []int {
	t := newTrial(p)
	violates := map[int]bool{}
	for _, i := range victims {
		before := t.broken
		t.end(i)
		violates[i] = t.broken > before
	}
	return reprieve(p, victims, func(i int) bool { return violates[i] })
}

// lowest returns the victims without those of a higher priority than is needed.
func lowest(p *Preemption, victims []int) []int {
	highest := map[int32]bool{}
	for _, i := range victims {
		highest[p.Victims[i].Priority] = true
	}
	priorities := make([]int32, 0, len(highest))
	for priority := range highest {
		priorities = append(priorities, priority)
	}
	slices.Sort(priorities)
	for _, priority := range priorities {
		low := slices.DeleteFunc(slices.Clone(victims), func(i int) bool { return p.Victims[i].Priority > priority })
		if _, ok := p.Evaluate(low); ok {
			return low
		}
	}
	return victims
}

// reprieve returns the victims without those that need not end: it considers the ones that may be left out, the more important first.
func reprieve(p *Preemption, victims []int, may func(int) bool) []int {
	left := slices.Clone(victims)
	for _, i := range victims {
		if !may(i) {
			continue
		}
		without := slices.DeleteFunc(slices.Clone(left), func(k int) bool { return k == i })
		if _, ok := p.Evaluate(without); ok {
			left = without
		}
	}
	return left
}

// largest returns the victim of a pool that has most of the first thing that lacks: the one of fewer pods, lower priority and later start
// among equals. The result is false when nothing that is a sum lacks.
func (t *trial) largest(pool []int) (int, bool) {
	amount, lacks := t.lack()
	if !lacks {
		return 0, false
	}
	best, most := -1, int64(0)
	for _, i := range pool {
		if slices.Contains(t.ended, i) {
			continue
		}
		has := amount(i)
		if has == 0 || has < most {
			continue
		}
		if has > most || t.lessImportant(i, best) {
			best, most = i, has
		}
	}
	return best, best >= 0
}

func (t *trial) lessImportant(a, b int) bool {
	v, w := &t.Victims[a], &t.Victims[b]
	return cmp.Or(cmp.Compare(v.Pods, w.Pods), cmp.Compare(v.Priority, w.Priority), cmp.Compare(w.Started, v.Started), cmp.Compare(b, a)) < 0
}

// lack returns how much each victim has of the first thing that lacks.
func (t *trial) lack() (amount func(int) int64, lacks bool) {
	n := t.node()
	cpu, memory := -n.FreeCPU, -n.FreeMemory
	want := map[string]int64{}
	for i := range t.Requests {
		s := &t.Requests[i]
		cpu, memory = cpu+s.CPU, memory+s.Memory
		want[s.Resource] += int64(s.GPUs)
		if s.GPUs > 0 && count(n, s).free < want[s.Resource] {
			return func(v int) int64 { return t.devices(v, s) }, true
		}
	}
	switch {
	case cpu > 0:
		return func(v int) int64 { return t.Victims[v].CPU }, true
	case memory > 0:
		return func(v int) int64 { return t.Victims[v].Memory }, true
	}
	return nil, false
}

// devices returns how many devices for a request are free once a victim has ended, beside those that are.
func (t *trial) devices(victim int, s *Shape) int64 {
	var sum int64
	for _, h := range t.heldBy[victim] {
		if held := &t.Held[h]; t.running[h] == 1 {
			for i := range held.GPUs.All() {
				if g := &t.Node.GPUs[i]; s.wants(g) && g.State.allocatable() {
					sum += max(1, int64(cmp.Or(held.Amount, s.Of(g))/max(1, s.Of(g))))
				}
			}
		}
	}
	return sum
}
