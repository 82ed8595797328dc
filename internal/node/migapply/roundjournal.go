package migapply

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

func (r *round) unusable(code string, err error) {
	r.fault(code, fmt.Sprintf("%s/%s: %v. MIG layouts are not changed until that works.", r.deps.Dir, JournalFile, err))
}

func (r *round) readJournal() error {
	found, result := r.desk.read()
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
		r.fault(code, fmt.Sprintf("%v. A change that was under way is planned anew from what is wanted now; where nothing is wanted, the card stays as it is.", result.Err))
	}
	r.readWell = !result.Lost()
	r.mended(unreadable)
	r.journal = found
	if r.resumed || r.closed != "" {
		return nil
	}
	if uid := r.nodeUID(); uid != "" && found.NodeUID != "" && found.NodeUID != uid {
		r.deps.Log.Warn("a MIG change of another Node is not carried out", "uid", found.NodeUID, "own", uid)
		r.journal = journal{}
		if err := r.writeJournal(false, StepTakenOver); err != nil {
			return err
		}
	}
	return r.takeOver()
}

// nodeUID is the UID of our Node; empty when it is not known.
func (r *round) nodeUID() string {
	if r.deps.NodeUID == nil {
		return ""
	}
	return r.deps.NodeUID()
}

// forgiveJournal ends the trouble with a journal that was put aside, in a round that found a good one: when one was written since,
// or all is as it is wanted, so that nothing depends on what the damaged one said.
func (r *round) forgiveJournal() {
	open := slices.ContainsFunc(r.jobs, func(j *job) bool { return j.state != Applied && j.state != Refused })
	if r.readWell && (len(r.journal.Cards) > 0 || !open) {
		r.mended(corrupt)
		r.mended(otherVersion)
	}
}

// takeOver makes the changes of the agent before ours.
func (r *round) takeOver() error {
	if len(r.journal.Cards) > 0 {
		before := r.journal.Owner
		if err := r.writeJournal(true, StepTakenOver); err != nil {
			if isStop(err) {
				return err
			}
			r.closed = err.Error()
			return nil
		}
		for _, card := range r.journal.Cards {
			r.unseen[card.UUID], r.untouched[card.UUID] = true, true
			r.deps.Log.Info("going on with a MIG change", "gpu", card.UUID, "wanted", shape(card.Wanted), "source", card.Source, "begunBy", before, "generation", r.journal.Generation)
		}
	}
	r.resumed = true
	return nil
}

// writeJournal makes the journal's file what it is in memory.
func (r *round) writeJournal(anew bool, done Step) error {
	err := func() error {
		if anew {
			generation, err := r.desk.next()
			if err != nil {
				return err
			}
			r.journal.Generation, r.journal.Owner = generation, r.deps.Owner
			r.journal.NodeUID = cmp.Or(r.nodeUID(), r.journal.NodeUID)
		}
		return r.desk.write(r.journal, func() error { return r.step(StepJournalTorn) })
	}()
	if isStop(err) {
		return err
	}
	if err != nil {
		r.unusable(unwritable, err)
		return fmt.Errorf("write %s/%s: %w", r.deps.Dir, JournalFile, err)
	}
	r.mended(unwritable)
	return r.step(done)
}

// closeJournal takes from the journal what has ended.
func (r *round) closeJournal() error {
	left := len(r.journal.Cards)
	if left == 0 {
		return nil
	}
	for _, j := range r.jobs {
		wanted := slices.ContainsFunc(r.wants, func(w Want) bool { return w.UUID == j.want.UUID })
		// A failure ends a change too when somebody still wants it, since that is seen again later;
		// what is not to be seen on the card is still under way.
		ended := j.state == Failed && wanted && r.known(j.want.UUID) && !r.untouched[j.want.UUID]
		if j.state == Applied || j.state == Refused || ended {
			r.journal.drop(j.want.UUID)
		}
	}
	r.journal.Cards = slices.DeleteFunc(r.journal.Cards, func(e entry) bool {
		return !slices.ContainsFunc(r.jobs, func(j *job) bool { return j.want.UUID == e.UUID })
	})
	if len(r.journal.Cards) == left {
		return nil
	}
	err := r.writeJournal(false, StepJournalRemoved)
	if err != nil && !isStop(err) {
		r.deps.Log.Warn("MIG journal could not be closed; that is tried again", "error", err)
		return nil
	}
	return err
}
