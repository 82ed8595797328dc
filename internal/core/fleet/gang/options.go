package gang

import (
	"encoding/binary"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// maxWork bounds for how many sets of victims the choice on nodes is exact, over all nodes of an answer; after that it is that of
// fleet.Preemption for many victims.
const maxWork = 1 << 18

// options are the combinations of members that fit on a node once holders have ended: the best for each.
type options struct {
	table table
	// holders are those that end, by position in the table.
	holders [][]int
}

// variant is what the options of a site depend on: which of its holders have ended, which may, and the number of the charges.
type variant struct {
	ended   uint64
	may     uint64
	charges int
}

// answer are the combinations that fit on nodes with the same content, with the victims that have to end by their place among those
// that may.
type answer struct {
	states  []int
	victims [][]int
	rough   bool
}

// options returns what fits on a node when the holders of one set have ended and those of another one may.
func (e *ending) options(node int, ended, may []bool) *options {
	s := e.sites[node]
	if s == nil {
		s = e.empty(node)
	}
	if len(s.holders) > 64 {
		return e.ask(s, ended, may)
	}
	v := variant{charges: e.version}
	for k, h := range s.holders {
		switch {
		case ended[h]:
			v.ended |= 1 << k
		case may[h]:
			v.may |= 1 << k
		}
	}
	if v.may == 0 {
		v.charges = 0 // Nothing that ends is counted.
	}
	o := s.known[v]
	if o == nil {
		o = e.ask(s, ended, may)
		s.known[v] = o
	}
	return o
}

// empty returns the site of a node without holders.
func (e *ending) empty(node int) *site {
	s := e.idle[node]
	if s == nil {
		s = &site{question: fleet.Preemption{Node: e.fleet.Node(node)}, known: map[variant]*options{}}
		e.idle[node] = s
	}
	return s
}

// ask is options without what is known of the node already.
func (e *ending) ask(s *site, ended, may []bool) *options {
	question, holders := e.question(s, ended, may)
	if question == nil {
		return &options{table: table{{}}, holders: [][]int{nil}}
	}
	key := e.key(question)
	a, known := e.answers[key]
	if !known {
		a = e.enumerate(question)
		e.answers[key] = a
	}
	e.rough = e.rough || a.rough
	o := &options{table: make(table, len(a.states)), holders: make([][]int, len(a.states))}
	for i, state := range a.states {
		o.table[i].state = state
		if cost := &o.table[i].cost; state > 0 {
			cost.Nodes = 1
		}
		for _, v := range a.victims[i] {
			h, cost := holders[v], &o.table[i].cost.ended
			o.holders[i] = append(o.holders[i], h)
			cost.violations += int64(e.charges[h])
			cost.pods += int64(e.holders.List[h].Pods)
			cost.importance += e.importance(h)
		}
	}
	return o
}

// question returns which holders of a site that may end have to, when others have ended, and these holders by their place in it. All have
// the same priority and start: of those that may end the priority does not matter.
func (e *ending) question(s *site, ended, may []bool) (*fleet.Preemption, []int) {
	n, err := s.question.Without(s.local(ended))
	if err != nil {
		return nil, nil // newSites has asked the same.
	}
	q := &fleet.Preemption{Node: &n, Budgets: []int32{0}}
	var holders []int
	places := make([]int, len(s.holders)) // in the new question, by place in the site; negative ones have none
	for k, h := range s.holders {
		switch {
		case ended[h]:
			places[k] = -1
		case !may[h]:
			places[k] = -2
		default:
			places[k] = len(holders)
			holders = append(holders, h)
			v := s.question.Victims[k]
			for range e.charges[h] {
				v.Budgets = append(v.Budgets, []int{0})
			}
			q.Victims = append(q.Victims, v)
		}
	}
	for i := range s.question.Held {
		held := s.question.Held[i]
		var victims []int
		for _, k := range held.Victims {
			if places[k] == -2 {
				victims = nil
				break
			}
			if places[k] >= 0 {
				victims = append(victims, places[k])
			}
		}
		if len(victims) > 0 {
			held.Victims = victims
			q.Held = append(q.Held, held)
		}
	}
	return q, holders
}

// key is the content of a question: questions of equal keys have the same answer.
func (e *ending) key(q *fleet.Preemption) string {
	b := e.nodes.append(e.scratch[:0], q.Node)
	number := func(x int64) { b = binary.AppendVarint(b, x) }
	for i := range q.Victims {
		v := &q.Victims[i]
		number(int64(v.Pods))
		number(int64(len(v.Budgets)))
		number(v.CPU)
		number(v.Memory)
	}
	number(-1)
	for i := range q.Held {
		h := &q.Held[i]
		for _, v := range h.Victims {
			number(int64(v))
		}
		number(-1)
		number(int64(h.GPUs))
		number(int64(h.Amount))
		b = append(b, byte(h.Traffic))
	}
	e.scratch = b
	return string(b)
}

// enumerate finds all combinations that fit on the node of a question.
func (e *ending) enumerate(q *fleet.Preemption) answer {
	w := asking{ending: e, question: q, answer: answer{states: []int{0}, victims: [][]int{nil}}}
	w.more(0, 0, nil)
	order := make([]int, len(w.answer.states))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return w.answer.states[a] - w.answer.states[b] })
	sorted := answer{rough: w.answer.rough}
	for _, i := range order {
		sorted.states, sorted.victims = append(sorted.states, w.answer.states[i]), append(sorted.victims, w.answer.victims[i])
	}
	return sorted
}

// asking asks for one combination after another.
type asking struct {
	*ending
	question *fleet.Preemption
	answer   answer
}

// more notes the combinations that fit and have more members of the classes from c on than a state, whose members have these requests.
func (w *asking) more(c, state int, requests []fleet.Shape) {
	for ; c < len(w.gang.Classes); c++ {
		next, all := state, slices.Clip(requests)
		for range w.space.counts[c] {
			next, all = next+w.space.strides[c], append(all, w.gang.Classes[c].Requests...)
			if !w.note(next, all) {
				break
			}
			w.more(c+1, next, all)
		}
	}
}

// note notes a combination if it fits.
func (w *asking) note(state int, requests []fleet.Shape) bool {
	q := w.question
	if len(requests) > fleet.MaxVictims {
		w.answer.rough = true
		return false
	}
	w.spend(victimSteps)
	q.Requests = requests
	if _, free := q.Evaluate(nil); free {
		w.answer.states, w.answer.victims = append(w.answer.states, state), append(w.answer.victims, nil)
		return true
	}
	if len(q.Victims) == 0 {
		return false
	}
	if q.Exact = 0; w.work > maxWork {
		q.Exact = -1
	}
	plan, sets, err := q.Least()
	if err != nil || plan == nil {
		return false
	}
	w.work += sets
	w.spend(sets * victimSteps)
	w.answer.rough = w.answer.rough || sets == 0
	w.answer.states, w.answer.victims = append(w.answer.states, state), append(w.answer.victims, plan.Victims)
	return true
}
