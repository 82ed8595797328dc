package gang

import "errors"

// ErrSteps is the error of a question that took more steps than its budget has, or was stopped.
var ErrSteps = errors.New("the question takes more steps than are allowed")

const (
	// A step is one comparison of two ways to divide members, some 15 ns. Other work counts as so many: to place a member on a node, which
	// says what that costs, and to choose victims on a node.
	memberSteps, victimSteps = 250, 1000
	// stopEvery is after how many steps it is asked whether to stop.
	stopEvery = 1 << 20
)

// Budget is how much work a question may be. The zero value is any amount.
type Budget struct {
	// Steps is the largest number of steps, 0 for any.
	Steps uint64
	// Stop ends a question when it returns true; nil never does.
	Stop func() bool
	// Rough has a gang that is not divided into segments planned class by class, with as many steps again, when the steps are used up.
	Rough bool
}

// Bound sets the budget of each of the following questions.
func (p *Planner) Bound(b Budget) { p.budget = b }

// spend counts steps. It ends the question by a panic, which bounded recovers, when these are too many.
func (p *Planner) spend(steps int) {
	p.spent += uint64(steps)
	if p.budget.Stop != nil && p.spent-p.asked >= stopEvery {
		p.asked = p.spent
		p.stopped = p.budget.Stop()
	}
	if p.over = p.stopped || p.budget.Steps > 0 && p.spent > p.budget.Steps; p.over {
		panic(ErrSteps)
	}
	p.stats.Steps += uint64(steps)
}

// bounded answers a question within the budget. The fleet is as before after it, whatever happens.
func (p *Planner) bounded(answer func() error) (err error) {
	p.spent, p.asked, p.stopped, p.over = 0, 0, false, false
	mark := p.fleet.Checkpoint()
	defer func() {
		p.fleet.Rollback(mark)
		if p.over {
			p.over = false
			_ = recover()
			err = ErrSteps
		}
	}()
	return answer()
}
