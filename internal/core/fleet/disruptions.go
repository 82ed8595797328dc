package fleet

// Disruptions counts which pods PodDisruptionBudgets do not allow to end, in the order in which they end.
type Disruptions struct {
	allowed []int32
	used    []int32 // by budget
}

// NewDisruptions returns the count of budgets, each of which allows so many disruptions.
func NewDisruptions(allowed []int32) *Disruptions {
	return &Disruptions{allowed: allowed, used: make([]int32, len(allowed))}
}

// End ends pods, of which each has the positions of its budgets. It returns how many of them a budget does not allow to end.
func (d *Disruptions) End(pods [][]int) int {
	broken := 0
	for _, pod := range pods {
		violates := false
		for _, b := range pod {
			violates = violates || d.used[b] >= d.allowed[b]
			d.used[b]++
		}
		if violates {
			broken++
		}
	}
	return broken
}

// Undo undoes the last End that is not undone, with the same pods. It returns what that End did.
func (d *Disruptions) Undo(pods [][]int) int {
	broken := 0
	for k := range pods {
		pod, violates := pods[len(pods)-1-k], false
		for j := range pod {
			b := pod[len(pod)-1-j]
			d.used[b]--
			violates = violates || d.used[b] >= d.allowed[b]
		}
		if violates {
			broken++
		}
	}
	return broken
}

// Exceeded tells whether more pods have ended than a budget allows.
func (d *Disruptions) Exceeded(budget int) bool { return d.used[budget] > max(0, d.allowed[budget]) }
