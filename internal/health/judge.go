package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/gpu"
)

// Settle is how long after an XID a scan must begin to count as proof that the card
// is well again. The driver reports an XID before its own diagnosis is finished, so
// the recovery action may still read "none" in the first moments.
const Settle = time.Second

// maxXIDCauses bounds the causes that events can add to one card. A card with more
// kinds of XID standing than this is no better known by one more.
const maxXIDCauses = 32

// Input is everything a verdict on one card rests on.
type Input struct {
	// Previous is the last verdict; the zero value for a card seen for the first time.
	Previous gpu.Health
	// ScanBegan is when the scan began that Seen, Recovery and Answers come from. Zero
	// means that there was no scan: then Seen only adds to the causes, and Recovery
	// and Answers are not read.
	ScanBegan time.Time
	// Seen are the level causes that the scan found; their Since is not read.
	Seen []gpu.Cause
	// Recovery is what the driver says would repair the card; empty when it does not
	// say (drivers before NVML field 230, lost cards).
	Recovery gpu.Recovery
	// Answers tells whether the card answered in the scan.
	Answers bool
	// Events are what the hardware said of this card. They may be older than the scan
	// and may already be part of Previous: an event counts once.
	Events []gpu.Event
	// Now stamps level causes that are new.
	Now time.Time
	// IgnoredXIDs are the codes that say nothing of the card's health; nil means
	// DefaultIgnoredXIDs.
	IgnoredXIDs map[uint64]bool
}

// Judge gives the verdict.
//
//   - A level cause (GPU_LOST, ECC_DOUBLE_BIT and so on) stands while scans find it
//     and goes with the first scan that does not. Its Since is that of its first scan.
//   - An XID cause stands until there is proof of repair: a scan that began more than
//     Settle after the last such event, in which the card answers and the driver says
//     that no recovery action is needed; or, whatever the driver says of recovery, one
//     in which a card answers that was gone before, since a card comes back from
//     there only through a reset, a new driver or another power-up. So on a driver
//     that cannot name recovery actions, an XID cause stands until the card was reset.
//   - A card that does not answer is Gone, a card with a cause is Unhealthy.
func Judge(in Input) gpu.Health {
	scanned := !in.ScanBegan.IsZero()
	out := gpu.Health{Recovery: in.Previous.Recovery}
	if scanned {
		out.Recovery = in.Recovery
	}
	xids := standingXIDs(in, scanned)
	levels := standingLevels(in, scanned)
	out.Causes = slices.Concat(xids, levels)
	slices.SortFunc(out.Causes, CompareCauses)
	if len(out.Causes) == 0 {
		out.Causes = nil
	}
	out.State = verdict(in, scanned, len(out.Causes))
	return out
}

// CompareCauses orders causes by Since, Code and Message.
func CompareCauses(a, b gpu.Cause) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
}

func verdict(in Input, scanned bool, causes int) gpu.State {
	gone := in.Previous.State == gpu.Gone
	if scanned {
		gone = !in.Answers
	}
	switch {
	case gone:
		return gpu.Gone
	case causes > 0:
		return gpu.Unhealthy
	}
	return gpu.Healthy
}

// standingXIDs are the XID causes of the previous verdict without those that the
// scan disproves, and those of the events.
func standingXIDs(in Input, scanned bool) []gpu.Cause {
	last := map[uint64]time.Time{}
	var causes []gpu.Cause
	for _, cause := range in.Previous.Causes {
		if xid, ok := XIDOf(cause.Code); ok {
			causes = append(causes, cause)
			last[xid] = cause.Since
		}
	}
	events := slices.Clone(in.Events)
	slices.SortStableFunc(events, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) })
	for _, event := range events {
		if event.XID == 0 || ignored(in.IgnoredXIDs, event.XID) {
			continue
		}
		known, seen := last[event.XID]
		if !seen {
			if len(causes) >= maxXIDCauses {
				continue
			}
			causes = append(causes, XIDCause(event))
		}
		if !seen || event.Time.After(known) {
			last[event.XID] = event.Time
		}
	}
	if !scanned || !in.Answers {
		return causes
	}
	reset := in.Previous.State == gpu.Gone
	return slices.DeleteFunc(causes, func(cause gpu.Cause) bool {
		xid, _ := XIDOf(cause.Code)
		when := last[xid]
		if reset {
			return in.ScanBegan.After(when)
		}
		return in.Recovery == gpu.RecoveryNone && in.ScanBegan.After(when.Add(Settle))
	})
}

// standingLevels are the level causes that the scan found, each with the Since of
// its first appearance; without a scan, also those of the previous verdict.
func standingLevels(in Input, scanned bool) []gpu.Cause {
	before := map[string]gpu.Cause{}
	var causes []gpu.Cause
	for _, cause := range in.Previous.Causes {
		if _, isXID := XIDOf(cause.Code); isXID {
			continue
		}
		before[cause.Code] = cause
		if !scanned {
			causes = append(causes, cause)
		}
	}
	for _, cause := range in.Seen {
		at := slices.IndexFunc(causes, func(have gpu.Cause) bool { return have.Code == cause.Code })
		cause.Since = in.Now
		if old, ok := before[cause.Code]; ok {
			cause.Since = old.Since
		}
		if at >= 0 {
			causes[at] = cause
			continue
		}
		causes = append(causes, cause)
	}
	return causes
}
