package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Writes reports whether this ledger is the writer of the file. It reads the lock file, since a writer that another agent has superseded
// does not get to know that before its next change.
func (l *Ledger) Writes() bool {
	return l.store.leads() && !errors.Is(l.store.confirm(), ErrSuperseded)
}

// HasWriter reports whether a living process, this one included, is the writer of the file. A follower takes over at
// once when there is none: nobody else would prepare or release claims.
func (l *Ledger) HasWriter() bool { return l.store.leads() || !l.store.abandoned() }

// TakeOver makes this ledger the writer, and reads what the previous writer wrote; that one gets ErrSuperseded from then
// on. It does nothing for a ledger that is the writer. When it fails, the writer does not change, unless the file's
// content cannot be kept. It is called before the agent's device plugin registers, and by a follower when the kubelet
// calls this agent for claims.
func (l *Ledger) TakeOver() error {
	l.durable.Lock()
	err := l.takeOver()
	l.durable.Unlock()
	if err != nil {
		return fmt.Errorf("take over ledger: %w", err)
	}
	l.subs.Set()
	return nil
}

// takeOver is called with durable locked, or before the ledger is used.
func (l *Ledger) takeOver() error {
	if l.store.follows() {
		l.forgetFaults()
	}
	l.saving.Lock()
	err := l.store.takeOver(l.load)
	l.saving.Unlock()
	if err != nil {
		return err
	}
	l.seen = nil
	// An empty ledger writes its file too, so that an error of the disk is detected now.
	_ = l.save()
	return nil
}

// followFile brings a follower in line with the file, as Reconcile does: it reads the file, and if that has changed it
// replaces the state by it, except for grants to pods that this ledger has made and that the file does not have. It does
// nothing for a ledger that is or was the writer. While the file cannot be read the state does not change.
func (l *Ledger) followFile() error {
	if !l.store.follows() {
		return nil
	}
	l.durable.Lock()
	changed, err := l.refresh()
	l.durable.Unlock()
	if err != nil {
		return fmt.Errorf("follow ledger: %w", err)
	}
	if changed {
		l.subs.Set()
	}
	return nil
}

func (l *Ledger) refresh() (changed bool, err error) {
	blob, err := l.store.read()
	if err != nil || blob == nil || !l.store.follows() || l.seen != nil && bytes.Equal(blob, l.seen) {
		return false, err
	}
	l.seen = blob
	l.forgetFaults()
	return true, l.inForce(blob)()
}

// forgetFaults removes what a follower found about the content of the file, before it is read again.
func (l *Ledger) forgetFaults() {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.faults, "LEDGER_CORRUPT")
	delete(l.faults, "LEDGER_VERSION")
}

// mayWrite returns why this ledger cannot write. A writer that was superseded takes over again when the newer one has
// ended.
func (l *Ledger) mayWrite() error {
	l.leadAgain()
	return l.refusal()
}

// refusal returns why this ledger is not the writer, or nil.
func (l *Ledger) refusal() error {
	switch {
	case l.store.leads():
		return nil
	case l.store.follows():
		return ErrFollows
	}
	return ErrSuperseded
}

// leadAgain becomes the writer again when the agent that took over has ended.
func (l *Ledger) leadAgain() {
	if !l.store.superseded.Load() || !l.store.abandoned() {
		return
	}
	l.durable.Lock()
	defer l.durable.Unlock()
	l.deps.Log.Info("Newer agent has ended; taking over the ledger again")
	if err := l.takeOver(); err != nil {
		l.deps.Log.Error("Could not take over the ledger", "error", err)
		return
	}
	l.subs.Set()
}

// merge replaces the state by what another agent wrote. It keeps the grants to pods that this agent has made since,
// which only the kubelet has besides.
func (l *Ledger) merge(holdings []Holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var pending []Holding
	for _, key := range l.order {
		if h := l.records[key].Holding; h.Pending {
			pending = append(pending, h)
		}
	}
	l.records, l.order, l.looked = map[gpu.DeviceKey]*record{}, nil, time.Time{}
	for _, h := range holdings {
		l.put(h)
	}
	l.written = l.edits
	for _, h := range pending {
		if r := l.records[h.Key]; r == nil || r.Holder.OfPod() && r.Since.Before(h.Since) {
			l.put(h)
		}
	}
	l.publish()
}
