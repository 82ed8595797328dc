package migapply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// openWithin is how long a change waits for programs that have a GPU open before it fails.
const openWithin = 30 * time.Second

// openedBy lists programs that have a GPU open: "process 12 (nv-hostengine of pod gpu/dcgm-x) and process 77 (Xorg)".
func openedBy(open []openers.Opener) string {
	var parts []string
	for _, o := range open {
		who := o.Program
		if who == "" {
			who = "of unknown name"
		}
		if o.Pod != "" {
			who += " of pod " + o.Pod
		}
		parts = append(parts, fmt.Sprintf("process %d (%s)", o.PID, who))
	}
	return phrase.And(parts)
}

// toStop explains how to stop them.
func toStop(open []openers.Opener) string {
	var parts []string
	for _, o := range open {
		if !slices.Contains(parts, o.Stop) {
			parts = append(parts, o.Stop)
		}
	}
	return strings.Join(parts, "; ")
}

// awaitClosed checks, before anything is destroyed, whether the GPUs that need a reset can be reset. A GPU that a
// program has open waits for openWithin, and fails then: its present devices remain in use.
func (r *round) awaitClosed() error {
	for id := range r.opened {
		if !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == id && j.plan.Reset && j.state != Applied }) {
			delete(r.opened, id)
		}
	}
	for _, j := range r.jobs {
		if !j.ready || !j.plan.Reset || r.deps.Openers == nil {
			continue
		}
		open, err := r.openers(j.want.UUID)
		if isStop(err) {
			return err
		}
		switch {
		case err != nil:
			j.dropWork()
			j.state = Waiting
			j.message = fmt.Sprintf("%s does not change to %s yet: it is not known who has it open: %v.", name(j.device), goal(j.want), err)
		case len(open) == 0:
			delete(r.opened, j.want.UUID)
		default:
			r.waitForOpeners(j, open)
		}
	}
	return nil
}

func (r *round) openers(id gpu.UUID) ([]openers.Opener, error) {
	var open []openers.Opener
	err := r.call([]gpu.UUID{id}, "find who has the GPU open", func(ctx context.Context) error {
		found, err := r.deps.Openers(ctx, id)
		open = found
		return err
	})
	if err != nil {
		return nil, err
	}
	return open, nil
}

func (r *round) waitForOpeners(j *job, open []openers.Opener) {
	now := r.deps.Clock.Now()
	since, known := r.opened[j.want.UUID]
	if !known {
		since = now
		r.opened[j.want.UUID] = now
	}
	if now.Sub(since) >= openWithin {
		j.err = fmt.Errorf("it can be reset only while no program has it open, and %s has had it open for %s: %s. The GPU was not changed",
			openedBy(open), openWithin, toStop(open))
		r.failed(j)
		j.dropWork()
		return
	}
	j.dropWork()
	j.state, j.waits = Waiting, true
	j.message = fmt.Sprintf("%s changes to %s when no program has it open: %s has, since %s; %s.",
		name(j.device), goal(j.want), openedBy(open), since.UTC().Format(time.RFC3339), toStop(open))
}
