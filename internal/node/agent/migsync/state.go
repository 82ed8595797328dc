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

// announce writes "pending" before a change, so that a reader does not take the layout before for the new one. What has failed stays
// failed until something else is wanted.
func (l *stateLabel) announce(ctx context.Context, changed bool) {
	if l.written != stateFailed || changed {
		l.write(ctx, statePending)
	}
}

// update writes how far the GPUs are, and returns whether the label says so. Before the Node was read the label is left alone.
func (l *stateLabel) update(ctx context.Context, plan *plan, statuses []migapply.Status) bool {
	if !plan.known {
		return l.written == ""
	}
	l.write(ctx, stateOf(plan, statuses))
	return true
}

// stateOf is what the label should say; empty when no label asks for a layout.
func stateOf(plan *plan, statuses []migapply.Status) string {
	switch {
	case plan.layout == "":
		return ""
	case len(plan.problems) > 0:
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
