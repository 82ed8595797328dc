package model

import (
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Trial places pods on the fleet to see what fits; nothing of it lasts.
type Trial struct {
	*Model
	decider *fleet.Decider
}

// Try has work place pods beside what is held for others. It is for the scheduling cycle.
func (m *Model) Try(policy string, held []Held, work func(*Trial) error) error {
	d, err := m.decider(policy)
	if err != nil {
		return err
	}
	return m.withHeld(d, held, func() error { return work(&Trial{m, d}) })
}

// Place places a pod on a node. It is false, and nothing has changed, where the pod does not fit there.
func (t *Trial) Place(node int, requests []fleet.Shape) bool {
	ops, _, ok := t.decider.Together(node, requests)
	if !ok {
		return false
	}
	mark := t.fleet.Checkpoint()
	for _, op := range ops {
		if t.fleet.Place(op) != nil {
			t.fleet.Rollback(mark)
			return false
		}
	}
	t.fleet.Commit(mark)
	return true
}

// Lack says what a node lacks for a pod, or nothing where no single request is why.
func (t *Trial) Lack(node int, requests []fleet.Shape) string {
	for _, s := range requests {
		if reason := fleet.Fit(t.fleet.Node(node), s); reason.Lack != fleet.None {
			return reason.String()
		}
	}
	return ""
}

// Mark returns the state of the trial.
func (t *Trial) Mark() fleet.Mark { return t.fleet.Checkpoint() }

// Undo brings the trial back to a state.
func (t *Trial) Undo(mark fleet.Mark) { t.fleet.Rollback(mark) }

// Idle returns what no pod has of the usable GPUs of a node, in thousandths of a GPU.
func (t *Trial) Idle(node int) int64 { return t.fleet.Node(node).Idle() }
