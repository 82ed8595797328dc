package migapply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// carryOut does the work of all jobs; what it needs is ours. A card on which something
// fails drops out, and the others go on.
func (r *round) carryOut() error {
	var work []*job
	for _, j := range r.jobs {
		if j.busy() {
			work = append(work, j)
		}
	}
	if len(work) == 0 {
		return nil
	}
	begun, err := r.begin(work)
	if err != nil {
		return err
	}
	if begun {
		r.publish()
		for _, phase := range []func([]*job) error{r.quiesce, r.destroy, r.setModes, r.reset, r.create, r.touch, r.see} {
			if err := phase(work); err != nil {
				return err
			}
		}
	}
	return r.finish()
}

// begin writes the journal; false when that failed, and then nothing must be done.
func (r *round) begin(work []*job) (bool, error) {
	anew, before := false, r.journal
	before.Cards = slices.Clone(before.Cards)
	for _, j := range work {
		j.worked = true
		if j.ready {
			r.journal.put(entry{UUID: j.want.UUID, Wanted: j.want.Wanted, Source: j.want.Source, Plan: j.plan})
			anew = true
		}
	}
	if anew {
		switch err := r.writeJournal(true, StepJournalWritten); {
		case isStop(err):
			return false, err
		case err != nil:
			r.journal = before
			for _, j := range work {
				j.err = err
			}
			return false, nil
		}
	}
	for _, j := range work {
		r.unseen[j.want.UUID] = true
		if len(j.create) > 0 {
			r.untouched[j.want.UUID] = true
		}
		r.deps.Log.Info("MIG change begins", "gpu", j.want.UUID, "wanted", shape(j.want.Wanted), "source", j.want.Source, "generation", r.journal.Generation,
			"destroy", len(j.destroy), "mode", j.mode != nil, "create", len(j.create))
	}
	return true, nil
}

// act does one thing on a card. An error of the hardware is the job's and ends its work; the
// one that is returned is a stopError.
func (r *round) act(j *job, do func(context.Context) error, done Step, what string, args ...any) error {
	if j.err != nil {
		return nil
	}
	text := fmt.Sprintf(what, args...)
	err := r.call([]gpu.UUID{j.want.UUID}, text, do)
	if isStop(err) {
		return err
	}
	if err != nil {
		j.err = fmt.Errorf("%s: %w", text, err)
		return nil
	}
	return r.step(done)
}

func (r *round) quiesce(work []*job) error {
	for _, j := range work {
		if !j.ready || j.plan.SetMode == nil || r.deps.Quiesce == nil {
			continue
		}
		quiesce := func(ctx context.Context) error { return r.deps.Quiesce(ctx, j.want.UUID) }
		if err := r.act(j, quiesce, StepQuiesced, "end what Berth runs on it"); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) destroy(work []*job) error {
	for _, j := range work {
		for _, gone := range j.destroy {
			destroy := func(ctx context.Context) error {
				if gone.UUID == "" {
					return r.deps.Hardware.RemoveEmptyMIG(ctx, j.want.UUID, gone.GI)
				}
				return r.deps.Hardware.DestroyMIG(ctx, j.want.UUID, gone.GI)
			}
			if err := r.act(j, destroy, StepDestroyed, "destroy %s at %d (GPU instance %d)", gone.Profile, gone.Start, gone.GI); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *round) setModes(work []*job) error {
	for _, j := range work {
		if j.mode == nil {
			continue
		}
		set := func(ctx context.Context) error {
			var err error
			j.needsReset, err = r.deps.Hardware.SetMIGMode(ctx, j.want.UUID, *j.mode)
			return err
		}
		if err := r.act(j, set, StepModeSet, "switch MIG %s", onOff(*j.mode)); err != nil {
			return err
		}
	}
	return nil
}

// reset resets all cards that need it in one call, and when that fails one by one: not all need be at fault.
func (r *round) reset(work []*job) error {
	var cards []gpu.UUID
	var due []*job
	for _, j := range work {
		// Taking a pending change back never needs one; and only a whole card that is ours is reset.
		if j.err == nil && j.needsReset && j.plan.SetMode != nil {
			cards, due = append(cards, j.want.UUID), append(due, j)
		}
	}
	if len(due) == 0 {
		return nil
	}
	err := r.call(cards, "reset", func(ctx context.Context) error { return r.deps.Hardware.Reset(ctx, cards) })
	switch {
	case isStop(err):
		return err
	case err == nil:
		return r.step(StepReset)
	case len(due) == 1 || r.hung[cards[0]] != nil:
		for _, j := range due {
			j.err = fmt.Errorf("reset the GPU: %w", err)
		}
		return nil
	}
	r.deps.Log.Warn("GPUs could not be reset together; trying one by one", "gpus", cards, "error", err)
	for _, j := range due {
		reset := func(ctx context.Context) error { return r.deps.Hardware.Reset(ctx, []gpu.UUID{j.want.UUID}) }
		if err := r.act(j, reset, StepReset, "reset the GPU"); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) create(work []*job) error {
	for _, j := range work {
		for _, one := range j.create {
			create := func(ctx context.Context) error {
				return r.deps.Hardware.CreateMIG(ctx, j.want.UUID, one.Profile, one.Start)
			}
			if err := r.act(j, create, StepCreated, "create %s at %d", one.Profile, one.Start); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch concerns the node; without it new instances are of no use.
func (r *round) touch(work []*job) error {
	err := r.call([]gpu.UUID{everyCard}, "make the device nodes", r.deps.Hardware.Touch)
	if isStop(err) {
		return err
	}
	if err == nil {
		clear(r.untouched)
		return r.step(StepTouched)
	}
	for _, j := range work {
		if j.err == nil && (j.touch || len(j.create) > 0) {
			j.err = fmt.Errorf("make the device nodes of new instances: %w", err)
		}
	}
	return nil
}

// see waits until the inventory shows what was done, of failed cards too.
func (r *round) see(work []*job) error {
	for until := r.deps.Clock.Now().Add(seeWithin); ; {
		err := r.rescan()
		if isStop(err) {
			return err
		}
		if err == nil && r.compare(work) {
			return r.step(StepRescanned)
		}
		if !r.deps.Clock.Now().Before(until) {
			return r.blame(work, err)
		}
		select {
		case <-r.ctx.Done():
		case <-r.deps.Clock.After(seePause):
		}
	}
}

// blame says what is wrong with the cards that are not as they should be, or that could not be
// looked at.
func (r *round) blame(work []*job, scan error) error {
	for _, j := range work {
		switch {
		case j.err != nil:
		case scan != nil:
			j.err = fmt.Errorf("look at the hardware afterwards: %w", scan)
		case j.after.card == nil:
			j.err = errors.New("the GPU is not there any more")
		case j.after.card.MIG.Unsure:
			j.err = errors.New("how it is partitioned could not be read completely afterwards")
		case !j.asPlanned():
			j.err = errors.New("the driver said that all went well, but " + bothers(j.after.card, &j.after.plan))
		}
	}
	if scan != nil {
		return nil
	}
	return r.step(StepRescanned)
}

// compare tells whether the cards that did not fail are as they should be by now.
func (r *round) compare(work []*job) bool {
	snapshot, held := r.deps.Inventory.Current(), r.holdings()
	all := true
	for _, j := range work {
		if j.err == nil {
			j.after = r.consider(j.want, snapshot, held)
			all = all && j.asPlanned() && j.after.card != nil && !j.after.card.MIG.Unsure
		}
	}
	return all
}

// asPlanned tells whether the card is as it should be after the work: done, or with its mode, when its devices could not be
// planned before.
func (j *job) asPlanned() bool {
	modeOnly := j.plan.Unplanned && j.after.card != nil && j.after.card.MIG.Enabled
	return modeOnly || !j.after.busy()
}

// finish gives back what was held for the work.
func (r *round) finish() error {
	for i, j := range r.jobs {
		if !j.worked {
			continue
		}
		if j.err != nil {
			r.failed(j)
		} else {
			r.deps.Log.Info("MIG change is done", "gpu", j.want.UUID, "now", shape(j.want.Wanted), "generation", r.journal.Generation)
			delete(r.tries, j.want.UUID)
			r.jobs[i] = j.after
		}
		// What was not looked at since might still be offered though it is gone, or be about to go.
		if j.ready && r.known(j.want.UUID) {
			if err := r.hold(j.want.UUID, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
