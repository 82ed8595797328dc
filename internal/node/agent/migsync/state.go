package migsync

import (
	"context"

	"github.com/berth-gpu/berth/internal/node/migapply"
)

// The values of the label nvidia.com/mig.config.state, as mig-manager writes them.
const (
	stateSuccess = "success"
	statePending = "pending"
	stateFailed  = "failed"
)

// stateLabel is the label nvidia.com/mig.config.state of the Node.
type stateLabel struct {
	node Node
	// written is the state that was last written; empty for none.
	written string
}

// announce writes "pending" before a change, so that a reader does not mistake the previous layout for the new one. A
// failure remains until something else is wanted.
func (l *stateLabel) announce(ctx context.Context, changed bool) {
	if l.written != stateFailed || changed {
		l.write(ctx, statePending)
	}
}

// update writes the state of the GPUs, and reports whether the label has it. It does not change the label before the
// Node was read.
func (l *stateLabel) update(ctx context.Context, plan *wantPlan, statuses []migapply.Status) bool {
	if !plan.Known {
		return l.written == ""
	}
	l.write(ctx, stateOf(plan, statuses))
	return true
}

// stateOf returns the wanted value of the label; empty when no label asks for a layout.
func stateOf(plan *wantPlan, statuses []migapply.Status) string {
	switch {
	case plan.Layout == "":
		return ""
	case len(plan.Problems) > 0:
		return stateFailed
	}
	state := stateSuccess
	for _, status := range statuses {
		switch status.State {
		case migapply.Failed, migapply.Refused:
			return stateFailed
		case migapply.Applied:
		default:
			state = statePending
		}
	}
	return state
}

func (l *stateLabel) write(ctx context.Context, state string) {
	if state != l.written {
		l.node.SetMIGState(ctx, state, state == statePending)
		l.written = state
	}
}
