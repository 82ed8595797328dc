package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

const (
	// MaxExact is among how many victims that can help the choice is exact.
	MaxExact = 16
	// MaxVictims is how many victims a node can have.
	MaxVictims = 1024
	// MaxPods is how many pods a victim can be.
	MaxPods = 1 << 20
)

// Preemption is the question which pods of a node to end, so that a pod of a higher priority fits there.
type Preemption struct {
	// Node is the node with all its pods.
	Node *Node
	// Requests are those of the pod that does not fit.
	Requests []Shape
	// Victims may be ended, the most important first.
	Victims []Victim
	// Held are the devices that are free once victims have ended. Devices that another pod holds, too, are not among them.
	Held []Held
	// Budgets are how many disruptions each PodDisruptionBudget still allows.
	Budgets []int32

	// Exact is among how many victims that can help the choice is exact: 0 stands for MaxExact, -1 for none.
	Exact int
}

// Victim is a pod, or several that can only be ended together.
type Victim struct {
	// Pods is how many pods end, on other nodes too: 1 to MaxPods.
	Pods     int
	Priority int32
	// Started is when the first of them started, in any unit; higher is later.
	Started int64
	// CPU (thousandths of a core) and Memory (MiB) are free on the node when it has ended.
	CPU    int64
	Memory int64
	// Budgets are, for each pod that budgets count, the positions of those in Preemption.Budgets.
	Budgets [][]int
}

// Held is devices of a node that are free once each of some victims has ended: one victim has the devices of a device plugin, several can
// share those of a claim.
type Held struct {
	// Victims are positions in Preemption.Victims.
	Victims []int
	// GPUs are the entries of the node, Amount what is free of each then, in thousandths; 0 stands for one device.
	GPUs   GPUSet
	Amount int32
	// Traffic is what the holder says that it needs much of.
	Traffic Traffic
}

// Plan is a set of victims without which a pod fits.
type Plan struct {
	// Victims are positions in Preemption.Victims, ascending.
	Victims []int
	// Violations is how many of their pods the PodDisruptionBudgets do not allow to end.
	Violations int
	// Priority is the highest of the victims, PrioritySum the sum over their pods.
	Priority    int32
	PrioritySum int64
	// Pods is how many pods end.
	Pods int
	// Started is when the first of the victims with the highest priority started.
	Started int64
	// Score says what the pod gets: the lowest of its requests'. Its step is 0.
	Score Score
}

// compare returns a negative number when p is the better plan, in this order: fewer violations of budgets, a lower highest priority,
// fewer pods, better GPUs (health, contention, links, as Score has them), a lower sum of priorities, a later start of the victims with
// the highest priority, less important victims by their order.
func (p *Plan) compare(other *Plan) int {
	return cmp.Or(p.compareEnded(other), cmp.Compare(other.Score, p.Score), cmp.Compare(p.PrioritySum, other.PrioritySum),
		cmp.Compare(other.Started, p.Started), slices.Compare(other.Victims, p.Victims))
}

// compareEnded compares what more victims only make worse.
func (p *Plan) compareEnded(other *Plan) int {
	return cmp.Or(cmp.Compare(p.Violations, other.Violations), cmp.Compare(p.Priority, other.Priority), cmp.Compare(p.Pods, other.Pods))
}

// Plans returns the best plans, at most that many, the best first. It returns none when the pod fits without ending anything, and when it
// does not fit even if all victims end.
//
// Among up to Exact victims that can help, the plans are the best of all. Beyond that there is one plan. Its number of violations is
// not always the least; for that number, its highest priority is the lowest. When a pod requests whole GPUs and no victims share
// devices, it ends at most D times as many pods as the best plan with these, where D is the number of things that lack: CPU, memory,
// devices of each resource. No victim of it can be left out.
func (p *Preemption) Plans(most int) ([]Plan, error) {
	plans, _, err := p.search(search{most: most})
	return plans, err
}

// Least returns a plan that is as good as the first of Plans in violations, highest priority and pods; of equal ones that with the less
// important victims by their order. It takes less time. sets is how many sets of victims were tried: 0 where the plan is one among too many
// victims to be the best of all. The plan is nil where Plans returns none.
func (p *Preemption) Least() (plan *Plan, sets int, err error) {
	plans, sets, err := p.search(search{most: 1, least: true})
	if len(plans) == 0 {
		return nil, sets, err
	}
	return &plans[0], sets, err
}

// search returns the plans that a search finds, and how many sets it has tried.
func (p *Preemption) search(s search) ([]Plan, int, error) {
	if err := p.validate(); err != nil {
		return nil, 0, fmt.Errorf("choose victims on %s: %w", p.Node.Name, err)
	}
	t := newTrial(p)
	if _, ok := t.fits(); ok || s.most < 1 {
		return nil, 0, nil
	}
	useful := p.useful()
	for _, i := range useful {
		t.end(i)
	}
	if _, ok := t.fits(); !ok {
		return nil, 0, nil
	}
	if len(useful) > cmp.Or(p.Exact, MaxExact) {
		return []Plan{cover(p, useful)}, 0, nil
	}
	s.trial, s.useful = newTrial(p), useful
	if p.monotone() {
		s.needs = s.trial.needs(useful)
	}
	s.walk(len(useful) - 1)
	return s.plans, s.sets, nil
}

// Evaluate returns the plan of these victims; false when the pod does not fit without them, or one of them is not known.
func (p *Preemption) Evaluate(victims []int) (Plan, bool) {
	if p.validate() != nil {
		return Plan{}, false
	}
	victims = slices.Compact(slices.Sorted(slices.Values(victims)))
	t := newTrial(p)
	for _, i := range victims {
		if i < 0 || i >= len(p.Victims) {
			return Plan{}, false
		}
		t.end(i)
	}
	score, ok := t.fits()
	return t.plan(score), ok
}

func (p *Preemption) validate() error {
	if len(p.Victims) > MaxVictims || len(p.Requests) > MaxVictims || len(p.Held) > MaxVictims*MaxGPUs {
		return fmt.Errorf("%d victims, %d requests, %d holdings; want at most %d, %d and %d",
			len(p.Victims), len(p.Requests), len(p.Held), MaxVictims, MaxVictims, MaxVictims*MaxGPUs)
	}
	if err := p.Node.validate(); err != nil {
		return err
	}
	for i := range p.Requests {
		if err := p.Requests[i].Validate(); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	for i := range p.Victims {
		if err := p.Victims[i].Validate(len(p.Budgets)); err != nil {
			return fmt.Errorf("victim %d: %w", i, err)
		}
	}
	for i := range p.Held {
		if err := p.Held[i].validate(p); err != nil {
			return fmt.Errorf("holding %d: %w", i, err)
		}
	}
	return nil
}

// Validate returns an error for a victim that cannot be, where there are so many budgets.
func (v *Victim) Validate(budgets int) error {
	if v.Pods < 1 || v.Pods > MaxPods || v.CPU < 0 || v.CPU > MaxAmount || v.Memory < 0 || v.Memory > MaxAmount {
		return fmt.Errorf("%d pods of %d thousandths of a core and %d MiB; want 1 to %d pods, and 0 to %d", v.Pods, v.CPU, v.Memory, MaxPods, int64(MaxAmount))
	}
	for _, pod := range v.Budgets {
		for _, at := range pod {
			if at < 0 || at >= budgets {
				return fmt.Errorf("budget %d; want 0 to %d", at, budgets-1)
			}
		}
	}
	return nil
}

func (h *Held) validate(p *Preemption) error {
	if len(h.Victims) == 0 || h.Amount < 0 || h.Amount > Whole || len(p.Node.GPUs) < MaxGPUs && h.GPUs>>uint(len(p.Node.GPUs)) != 0 {
		return fmt.Errorf("%d victims hold %d thousandths of GPUs %b; want victims, 0 to %d, and GPUs of the node", len(h.Victims), h.Amount, h.GPUs, Whole)
	}
	sorted := h.Victims
	if len(sorted) > 1 {
		sorted = slices.Sorted(slices.Values(sorted))
	}
	if sorted[0] < 0 || sorted[len(sorted)-1] >= len(p.Victims) || len(slices.Compact(sorted)) != len(h.Victims) {
		return fmt.Errorf("victims %v; want 0 to %d, each once", h.Victims, len(p.Victims)-1)
	}
	return nil
}

// Without returns the node without these victims.
func (p *Preemption) Without(victims []int) (Node, error) {
	if err := p.validate(); err != nil {
		return Node{}, fmt.Errorf("end victims on %s: %w", p.Node.Name, err)
	}
	t, last := newTrial(p), -1
	for _, i := range victims {
		if i <= last || i >= len(p.Victims) {
			return Node{}, fmt.Errorf("end the victims %v on %s; want positions up to %d, ascending", victims, p.Node.Name, len(p.Victims)-1)
		}
		t.end(i)
		last = i
	}
	return *t.node(), nil
}

// useful returns the victims that can help: those that hold devices that the pod can have or shares a GPU with, and while CPU or memory
// lacks those that have some of it.
func (p *Preemption) useful() []int {
	cpu, memory, traffic := -p.Node.FreeCPU, -p.Node.FreeMemory, false
	for i := range p.Requests {
		cpu, memory, traffic = cpu+p.Requests[i].CPU, memory+p.Requests[i].Memory, traffic || p.Requests[i].Traffic != 0
	}
	help := make([]bool, len(p.Victims))
	for i := range p.Held {
		h := &p.Held[i]
		if !traffic && !slices.ContainsFunc(p.Requests, func(s Shape) bool { return p.Node.offers(h.GPUs, &s) }) {
			continue
		}
		for _, v := range h.Victims {
			help[v] = true
		}
	}
	var useful []int
	for i := range p.Victims {
		if v := &p.Victims[i]; help[i] || cpu > 0 && v.CPU > 0 || memory > 0 && v.Memory > 0 {
			useful = append(useful, i)
		}
	}
	return useful
}

// monotone tells whether the pod fits without more victims if it fits without some: what it gets is a number of devices, CPU and memory.
func (p *Preemption) monotone() bool {
	return !slices.ContainsFunc(p.Requests, func(s Shape) bool { return s.Traffic&Bandwidth != 0 || s.GPUs > 0 && s.Resource == "" })
}

// offers tells whether one of the GPUs is of the kind that a request wants, and can be allocated.
func (n *Node) offers(gpus GPUSet, s *Shape) bool {
	for i := range gpus.All() {
		if g := &n.GPUs[i]; s.GPUs > 0 && s.wants(g) && g.State.allocatable() {
			return true
		}
	}
	return false
}

// trial is a node on which some victims have ended.
type trial struct {
	*Preemption
	heldBy  [][]int // positions in Held, by victim
	running []int   // by Held: how many of its victims have not ended
	freed   []int32 // by GPU, in thousandths
	cpu     int64
	memory  int64
	budgets *Disruptions
	ended   []int
	broken  int
	scratch []GPU
}

func newTrial(p *Preemption) *trial {
	t := &trial{
		Preemption: p, heldBy: make([][]int, len(p.Victims)), running: make([]int, len(p.Held)),
		freed: make([]int32, len(p.Node.GPUs)), budgets: NewDisruptions(p.Budgets), scratch: make([]GPU, len(p.Node.GPUs)),
	}
	for i := range p.Held {
		t.running[i] = len(p.Held[i].Victims)
		for _, v := range p.Held[i].Victims {
			t.heldBy[v] = append(t.heldBy[v], i)
		}
	}
	return t
}

// end ends a victim; resume undoes the last end.
func (t *trial) end(i int) {
	v := &t.Victims[i]
	t.ended = append(t.ended, i)
	t.cpu, t.memory = t.cpu+v.CPU, t.memory+v.Memory
	for _, h := range t.heldBy[i] {
		if t.running[h]--; t.running[h] == 0 {
			t.release(&t.Held[h], 1)
		}
	}
	t.broken += t.budgets.End(v.Budgets)
}

func (t *trial) resume() {
	i := t.ended[len(t.ended)-1]
	v := &t.Victims[i]
	t.ended = t.ended[:len(t.ended)-1]
	t.cpu, t.memory = t.cpu-v.CPU, t.memory-v.Memory
	for _, h := range t.heldBy[i] {
		if t.running[h]++; t.running[h] == 1 {
			t.release(&t.Held[h], -1)
		}
	}
	t.broken -= t.budgets.Undo(v.Budgets)
}

func (t *trial) release(h *Held, sign int32) {
	for i := range h.GPUs.All() {
		t.freed[i] += sign * cmp.Or(h.Amount, t.Node.GPUs[i].Unit, Whole)
	}
}

// node returns the node without the victims. It is valid until the next call.
func (t *trial) node() *Node {
	n := *t.Node
	n.GPUs = t.scratch
	copy(n.GPUs, t.Node.GPUs)
	n.FreeCPU, n.FreeMemory = min(n.CPU, n.FreeCPU+t.cpu), min(n.Memory, n.FreeMemory+t.memory)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		g.Free = min(g.Total(), g.Free+t.freed[i])
	}
	for i := range t.Held {
		h := &t.Held[i]
		if h.Traffic == 0 || t.running[i] > 0 {
			continue
		}
		for k := range h.GPUs.All() {
			n.addTraffic(n.GPUs[k].Physical, h.Traffic, -1)
		}
	}
	return &n
}

// fits tells whether the pod fits now, and how good what it gets is.
func (t *trial) fits() (Score, bool) {
	n, worst := t.node(), Score(math.MaxInt64)
	for i := range t.Requests {
		s := &t.Requests[i]
		if !Fits(n, s) {
			return 0, false
		}
		for _, piece := range n.Pieces(*s) {
			if !Fits(n, &piece) {
				return 0, false
			}
			c := Choose(n, &piece)
			worst = min(worst, compose(&c, linkRank(n, &piece, &c), 0))
			n.take(&piece, c.GPUs)
		}
	}
	return worst, true
}

// take gives a pod what it requests.
func (n *Node) take(s *Shape, gpus GPUSet) {
	n.FreeCPU, n.FreeMemory = n.FreeCPU-s.CPU, n.FreeMemory-s.Memory
	for i := range gpus.All() {
		n.GPUs[i].Free -= s.Of(&n.GPUs[i])
		if s.Traffic != 0 {
			n.addTraffic(n.GPUs[i].Physical, s.Traffic, 1)
		}
	}
}

// plan returns the plan of the victims that have ended.
func (t *trial) plan(score Score) Plan {
	plan := Plan{Victims: slices.Sorted(slices.Values(t.ended)), Violations: t.broken, Priority: math.MinInt32, Score: score}
	for _, i := range plan.Victims {
		v := &t.Victims[i]
		plan.Pods += v.Pods
		plan.PrioritySum += int64(v.Pods) * int64(v.Priority)
		switch {
		case v.Priority > plan.Priority:
			plan.Priority, plan.Started = v.Priority, v.Started
		case v.Priority == plan.Priority:
			plan.Started = min(plan.Started, v.Started)
		}
	}
	return plan
}
