package migapply

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

func (r *round) journalFault(code string, err error) {
	r.fault(code, fmt.Sprintf("%s/%s: %v. MIG layouts are not changed until that works.", r.deps.Dir, JournalFile, err))
}

func (r *round) readJournal() error {
	found, result := r.store.read()
	switch result.State {
	case statefile.Unreadable:
		r.fault(unreadable, fmt.Sprintf("%v. MIG layouts are not changed until that works.", result.Err))
		r.closed = cmp.Or(r.closed, result.Err.Error())
		return nil
	case statefile.Damaged, statefile.Newer:
		code := corrupt
		if result.State == statefile.Newer {
			code = otherVersion
		}
		r.fault(code, fmt.Sprintf("%v. A change that was in progress is planned again from what is wanted now; a GPU for which nothing is wanted is not changed.", result.Err))
	}
	r.readWell = !result.Lost()
	r.clearFault(unreadable)
	r.journal = found
	if r.resumed || r.closed != "" {
		return nil
	}
	if uid := r.nodeUID(); uid != "" && found.NodeUID != "" && found.NodeUID != uid {
		r.deps.Log.Warn("Ignored a MIG change of another Node", "uid", found.NodeUID, "own", uid)
		r.journal = journal{}
		if err := r.writeJournal(false, StepTakenOver); err != nil {
			return err
		}
	}
	return r.takeOver()
}

// nodeUID is the UID of this Node; empty when it is not known.
func (r *round) nodeUID() string {
	if r.deps.NodeUID == nil {
		return ""
	}
	return r.deps.NodeUID()
}

// clearJournalFaults ends the problem of a renamed journal in a round that read a valid one: when one was written
// since, or when every GPU is as wanted, so that nothing depends on the damaged one.
func (r *round) clearJournalFaults() {
	open := slices.ContainsFunc(r.jobs, func(j *job) bool { return j.state != Applied && j.state != Refused })
	if r.readWell && (len(r.journal.GPUs) > 0 || !open) {
		r.clearFault(corrupt)
		r.clearFault(otherVersion)
	}
}

// takeOver continues the changes of the previous agent.
func (r *round) takeOver() error {
	if len(r.journal.GPUs) > 0 {
		before := r.journal.Owner
		if err := r.writeJournal(true, StepTakenOver); err != nil {
			if isStop(err) {
				return err
			}
			r.closed = err.Error()
			return nil
		}
		for _, e := range r.journal.GPUs {
			r.unseen[e.UUID], r.untouched[e.UUID] = true, true
			r.deps.Log.Info("Resumed a MIG change", "gpu", e.UUID, "wanted", shape(e.Wanted), "source", e.Source,
				"begunBy", before, "generation", r.journal.Generation)
		}
	}
	r.resumed = true
	return nil
}

// writeJournal writes the journal to its file.
func (r *round) writeJournal(renew bool, done Step) error {
	err := func() error {
		if renew {
			generation, err := r.store.next()
			if err != nil {
				return err
			}
			r.journal.Generation, r.journal.Owner = generation, r.deps.Owner
			r.journal.NodeUID = cmp.Or(r.nodeUID(), r.journal.NodeUID)
		}
		return r.store.write(r.journal, func() error { return r.step(StepJournalTorn) })
	}()
	if isStop(err) {
		return err
	}
	if err != nil {
		r.journalFault(unwritable, err)
		return fmt.Errorf("write %s/%s: %w", r.deps.Dir, JournalFile, err)
	}
	r.clearFault(unwritable)
	return r.step(done)
}

// closeJournal removes completed changes from the journal.
func (r *round) closeJournal() error {
	left := len(r.journal.GPUs)
	if left == 0 {
		return nil
	}
	for _, j := range r.jobs {
		wanted := slices.ContainsFunc(r.wants, func(w Want) bool { return w.UUID == j.want.UUID })
		// A failure ends a change too when it is still wanted, since it is planned again later; a change that the
		// hardware does not show is still in progress.
		ended := j.state == Failed && wanted && r.known(j.want.UUID) && !r.untouched[j.want.UUID]
		if j.state == Applied || j.state == Refused || ended {
			r.journal.drop(j.want.UUID)
		}
	}
	r.journal.GPUs = slices.DeleteFunc(r.journal.GPUs, func(e entry) bool {
		return !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == e.UUID })
	})
	if len(r.journal.GPUs) == left {
		return nil
	}
	err := r.writeJournal(false, StepJournalRemoved)
	if err != nil && !isStop(err) {
		r.deps.Log.Warn("Could not close the MIG journal; trying again", "error", err)
		return nil
	}
	return err
}
