package health

import (
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/gpu"
)

const (
	// Settle is how long after an XID a scan must begin to count as proof that the card
	// is well again. The driver reports an XID before its own diagnosis is finished, so
	// the recovery action may still read "none" in the first moments.
	Settle = time.Second
	// Probation is how long after an XID that only ends an application a card must have been free of other
	// faults, where the driver cannot say that nothing needs repair.
	Probation = time.Minute
	// SameReport is how far apart NVML and the kernel's log may tell of the same XID.
	SameReport = 2 * time.Second
)

// maxStanding bounds the errors that events can add to one card. A card with more of them is no
// better known by one more.
const maxStanding = 32

// Instance names a MIG instance of a card.
type Instance struct{ GI, CI int }

// Input is everything new that a judgement rests on.
type Input struct {
	// Previous is what was known; the zero value for a card seen for the first time.
	Previous Record
	// ScanBegan is when the scan began that Seen, Instances, Recovery and Answers come from. Zero
	// means that there was no scan: then Seen only adds to the causes, and the others are not read.
	ScanBegan time.Time
	// Seen are the level causes that the scan found; their Since is not read.
	Seen []gpu.Cause
	// Instances are the MIG instances that the scan found.
	Instances []Instance
	// Recovery is what the driver says would repair the card; empty when it does not
	// say (drivers before NVML field 230, lost cards).
	Recovery gpu.Recovery
	// Answers tells whether the card answered in the scan.
	Answers bool
	// Events are what the hardware said of this card. They may be older than the scan
	// and may already be part of Previous: an event counts once.
	Events []gpu.Event
	// Now stamps level causes that are new.
	Now   time.Time
	Rules Rules
}

// Judge is the verdict on a whole card, for those who have no history to keep.
func Judge(in Input) gpu.Health {
	record := Update(in)
	return record.Whole(in.Rules)
}

// Update takes in what is new. The verdicts are those of the record that it returns.
//
//   - A level cause (GPU_LOST, ECC_DOUBLE_BIT and so on) stands while scans find it
//     and goes with the first scan that does not. Its Since is that of its first scan.
//   - An error that was reported stands until there is proof of repair: a scan that began more than
//     Settle after the last such report, in which the card answers and the driver says
//     that no recovery action is needed; or, whatever the driver says of recovery, one
//     in which a card answers that was gone before, since a card comes back from
//     there only through a reset, a new driver or another power-up. So on a driver
//     that cannot name recovery actions, it stands until the card was reset; only one that the catalogue
//     calls the application's goes there after Probation, if nothing else is wrong with the card.
//   - An error of a MIG instance goes with the instance too: when two scans, one of them more than Settle after
//     the report, do not find it. One that needs a reset is the whole card's.
//   - A card that does not answer is Gone; otherwise the worst cause decides.
func Update(in Input) Record {
	scanned := !in.ScanBegan.IsZero()
	out := Record{Gone: in.Previous.Gone, Recovery: in.Previous.Recovery}
	if scanned {
		out.Gone, out.Recovery = !in.Answers, in.Recovery
	}
	out.Standing = reported(in)
	out.Levels = levels(in, scanned)
	if scanned && in.Answers {
		out.Standing = slices.DeleteFunc(out.Standing, func(s Standing) bool { return disproved(&s, &in, &out) })
		for i := range out.Standing {
			out.Standing[i].Missing = missing(&out.Standing[i], in.Instances)
		}
	}
	if len(out.Standing) == 0 {
		out.Standing = nil
	}
	return out
}

// reported are the standing errors with those of the events.
func reported(in Input) []Standing {
	standing := slices.Clone(in.Previous.Standing)
	standing = slices.DeleteFunc(standing, func(s Standing) bool { return s.class(&in.Rules) == Ignore })
	events := slices.Clone(in.Events)
	slices.SortStableFunc(events, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) })
	for _, event := range events {
		fresh := Standing{
			XID: event.XID, SXID: event.SXID, GI: event.GI, CI: event.CI, First: event.Time, Last: event.Time,
			Log: event.Log, Decoded: decode(event.XID, event.Detail),
		}
		if event.XID == 0 && event.SXID == 0 || fresh.class(&in.Rules) == Ignore {
			continue
		}
		if known := find(standing, fresh); known != nil {
			known.join(fresh)
		} else if len(standing) < maxStanding {
			standing = append(standing, fresh)
		}
	}
	return standing
}

// find finds the standing error that a report is another report of. The kernel's log does not name the MIG
// instance: what it says at about the time at which NVML reports the same XID is the same.
func find(standing []Standing, fresh Standing) *Standing {
	same := func(s *Standing) bool { return s.XID == fresh.XID && s.SXID == fresh.SXID }
	for i := range standing {
		if s := &standing[i]; same(s) && s.GI == fresh.GI && s.CI == fresh.CI {
			return s
		}
	}
	for i := range standing {
		s := &standing[i]
		near := fresh.First.Sub(s.Last).Abs() <= SameReport
		if same(s) && near && (fresh.Log && fresh.GI == gpu.NoInstance || s.Log && s.First.Equal(s.Last)) {
			return s
		}
	}
	return nil
}

// join takes in another report of the same error.
func (s *Standing) join(other Standing) {
	if s.Log && !other.Log {
		s.Log, s.GI, s.CI = false, other.GI, other.CI
	}
	if other.Last.After(s.Last) {
		s.Last = other.Last
	}
	if classRank(other.Decoded) > classRank(s.Decoded) {
		s.Decoded = other.Decoded
	}
}

func classRank(c Class) int { return slices.Index(Classes(), c) }

// disproved tells whether the scan proves that an error is repaired.
func disproved(s *Standing, in *Input, now *Record) bool {
	if in.Previous.Gone && in.ScanBegan.After(s.Last) {
		return true
	}
	switch {
	case !in.ScanBegan.After(s.Last.Add(Settle)):
		return false
	case in.Recovery == gpu.RecoveryNone:
		return true
	case s.Missing && missing(s, in.Instances) && !s.class(&in.Rules).wholeCard():
		return true
	}
	return in.Recovery == "" && s.class(&in.Rules) == RestartApp && in.ScanBegan.After(s.Last.Add(Probation)) &&
		!slices.ContainsFunc(now.Levels, func(level gpu.Cause) bool {
			return !(gpu.Health{State: now.fact(&in.Rules, level.Code).Class.State()}).OK()
		})
}

// missing tells whether an error is of a MIG instance that is not there.
func missing(s *Standing, found []Instance) bool {
	return s.GI != gpu.NoInstance && !slices.ContainsFunc(found, func(i Instance) bool {
		return i.GI == s.GI && (i.CI == s.CI || s.CI == gpu.NoInstance)
	})
}

// levels are the level causes that the scan found, each with the Since of
// its first appearance; without a scan, also those from before.
func levels(in Input, scanned bool) []gpu.Cause {
	var causes []gpu.Cause
	if !scanned {
		causes = slices.Clone(in.Previous.Levels)
	}
	byCode := func(code string) func(gpu.Cause) bool {
		return func(cause gpu.Cause) bool { return cause.Code == code }
	}
	for _, cause := range in.Seen {
		cause.Since = in.Now
		if at := slices.IndexFunc(in.Previous.Levels, byCode(cause.Code)); at >= 0 {
			cause.Since = in.Previous.Levels[at].Since
		}
		if at := slices.IndexFunc(causes, byCode(cause.Code)); at >= 0 {
			causes[at] = cause
			continue
		}
		causes = append(causes, cause)
	}
	return causes
}
