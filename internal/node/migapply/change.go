package migapply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// carryOut does the work of all jobs. Their devices are already held. A GPU on which a step fails is left out of the
// next steps, and the others continue.
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
	r.publish()
	begun, err := r.begin(work)
	if err != nil {
		return err
	}
	if begun {
		for _, phase := range []func([]*job) error{r.quiesce, r.destroy, r.setModes, r.reset, r.create, r.touch, r.verify} {
			if err := phase(work); err != nil {
				return err
			}
		}
	}
	return r.finish()
}

// begin writes the journal. When that fails it returns false, and nothing may be changed.
func (r *round) begin(work []*job) (bool, error) {
	renew, before := false, r.journal
	before.GPUs = slices.Clone(before.GPUs)
	for _, j := range work {
		j.worked = true
		if j.ready {
			r.journal.put(entry{UUID: j.want.UUID, Wanted: j.want.Wanted, Source: j.want.Source, Claims: j.want.Claims, Plan: j.plan})
			renew = true
		}
	}
	if renew {
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
		r.deps.Log.Info("MIG change started", "gpu", j.want.UUID, "wanted", shape(j.want.Wanted), "source",
			j.want.Source, "generation", r.journal.Generation,
			"destroy", len(j.destroy), "mode", j.mode != nil, "create", len(j.create))
	}
	return true, nil
}

// act does one step on a GPU. An error of the hardware is recorded in the job and ends its work, and a call that does not return soon
// leaves the rest of the work to a later round; the error that is returned is a stopError.
func (r *round) act(j *job, do func(context.Context) error, done Step, what string, args ...any) error {
	if j.err != nil || j.left {
		return nil
	}
	text := fmt.Sprintf(what, args...)
	err := r.callOrLeave(j, text, do)
	if isStop(err) || j.left {
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
		if err := r.act(j, quiesce, StepQuiesced, "end the programs of Berth on the GPU"); err != nil {
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
			if err := r.act(j, destroy, StepDestroyed, "destroy %s at %d (GPU instance %d)", gone.Profile, gone.Start,
				gone.GI); err != nil {
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
		if j.device.MIG.ModeNeedsReset && j.device.MIG.Enabled != *j.mode && j.device.MIG.PendingEnabled == *j.mode {
			j.needsReset = true // Also the result of an earlier round's call.
			continue
		}
		needsReset := false
		set := func(ctx context.Context) (err error) {
			needsReset, err = r.deps.Hardware.SetMIGMode(ctx, j.want.UUID, *j.mode)
			return err
		}
		if err := r.act(j, set, StepModeSet, "switch MIG %s", onOff(*j.mode)); err != nil {
			return err
		}
		if !j.left {
			j.needsReset = needsReset
		}
	}
	return nil
}

// reset resets all GPUs that need it in one call, and when that fails one by one, since the cause may concern only one. A call of this
// agent on another GPU would have the driver open, so that a reset waits for it. No GPU is changed during a reset, nor scanned.
func (r *round) reset(work []*job) error {
	ids, due := needReset(work)
	if len(due) == 0 {
		return nil
	}
	if c := r.changing(); c != nil {
		for _, j := range due {
			r.leave(j, c, "it is reset when the driver has answered for the other GPUs")
		}
		return nil
	}
	err := r.call(ids, "reset", func(ctx context.Context) error { return r.deps.Hardware.Reset(ctx, ids) })
	switch {
	case isStop(err):
		return err
	case err == nil:
		return r.step(StepReset)
	case len(due) == 1 || r.open[ids[0]] != nil:
		for _, j := range due {
			j.err = fmt.Errorf("reset the GPU: %w", err)
		}
		return nil
	}
	r.deps.Log.Warn("GPUs could not be reset together; trying one by one", "gpus", ids, "error", err)
	return r.resetEach(due)
}

// needReset returns the jobs that need a reset, and their GPUs. Reverting a pending change never needs one, and only a GPU that is held as
// a whole is reset.
func needReset(work []*job) (ids []gpu.UUID, due []*job) {
	for _, j := range work {
		if j.err == nil && !j.left && j.needsReset && j.plan.SetMode != nil {
			ids, due = append(ids, j.want.UUID), append(due, j)
		}
	}
	return ids, due
}

// resetEach resets GPUs one by one.
func (r *round) resetEach(due []*job) error {
	for _, j := range due {
		ids := []gpu.UUID{j.want.UUID}
		err := r.call(ids, "reset the GPU", func(ctx context.Context) error { return r.deps.Hardware.Reset(ctx, ids) })
		if isStop(err) {
			return err
		}
		if err != nil {
			j.err = fmt.Errorf("reset the GPU: %w", err)
			continue
		}
		if err := r.step(StepReset); err != nil {
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

// touch creates the device nodes, without which new instances cannot be used. It applies to the whole node.
func (r *round) touch(work []*job) error {
	err := r.call([]gpu.UUID{allGPUs}, "create the device nodes", r.deps.Hardware.Touch)
	if isStop(err) {
		return err
	}
	if err == nil {
		clear(r.untouched)
		return r.step(StepTouched)
	}
	for _, j := range work {
		if j.err == nil && !j.left && (j.touch || len(j.create) > 0) {
			j.err = fmt.Errorf("create the device nodes of new instances: %w", err)
		}
	}
	return nil
}

// verify waits until the inventory shows the changes, also those of failed GPUs.
func (r *round) verify(work []*job) error {
	for until := r.deps.Clock.Now().Add(verifyWithin); ; {
		err := r.rescan()
		if isStop(err) {
			return err
		}
		if err == nil && r.compare(work) {
			return r.step(StepRescanned)
		}
		if !r.deps.Clock.Now().Before(until) {
			return r.explain(work, err)
		}
		select {
		case <-r.ctx.Done():
		case <-r.deps.Clock.After(verifyInterval):
		}
	}
}

// explain sets the error of the GPUs that are not as planned, or that could not be scanned.
func (r *round) explain(work []*job, scan error) error {
	for _, j := range work {
		switch {
		case j.err != nil || j.left:
		case scan != nil:
			j.err = fmt.Errorf("scan the hardware after the change: %w", scan)
		case j.after.device == nil:
			j.err = errors.New("the GPU is no longer found")
		case j.after.device.MIG.Unsure:
			j.err = errors.New("its partitions could not be read completely after the change")
		case !j.asPlanned():
			j.err = errors.New("the driver reported success, but " + differences(j.after.device, &j.after.plan))
		}
	}
	if scan != nil {
		return nil
	}
	return r.step(StepRescanned)
}

// compare reports whether the GPUs that did not fail are as planned.
func (r *round) compare(work []*job) bool {
	snapshot, held := r.deps.Inventory.Current(), r.holdings()
	all := true
	for _, j := range work {
		if j.err == nil && !j.left {
			j.after = r.consider(j.want, snapshot, held)
			all = all && j.asPlanned() && j.after.device != nil && !j.after.device.MIG.Unsure
		}
	}
	return all
}

// asPlanned reports whether the GPU is as planned: done, or with its mode, when its devices could not be planned
// before.
func (j *job) asPlanned() bool {
	modeOnly := j.plan.Unplanned && j.after.device != nil && j.after.device.MIG.Enabled
	return modeOnly || !j.after.busy()
}

// finish releases what was held for the work that has ended.
func (r *round) finish() error {
	for i, j := range r.jobs {
		if !j.worked || j.left {
			continue
		}
		if j.err != nil {
			r.failed(j)
		} else {
			r.deps.Log.Info("MIG change completed", "gpu", j.want.UUID, "now", shape(j.want.Wanted), "generation", r.journal.Generation)
			delete(r.tries, j.want.UUID)
			r.jobs[i] = j.after
		}
		// A device that was not scanned since may still be advertised although it is removed or about to be.
		if j.ready && r.known(j.want.UUID) {
			if err := r.hold(j.want.UUID, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
