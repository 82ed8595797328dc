package health

import (
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// Settle is how long after an XID a scan must begin to prove that the GPU is repaired. The driver reports an XID before
	// its diagnosis is finished, so that the recovery action may still be None at first.
	Settle = time.Second
	// Probation is how long a GPU must be free of other faults after an XID that only ends an application, where the driver does
	// not report recovery actions.
	Probation = time.Minute
	// SameReport is the largest distance in time between the reports of one XID by NVML and in the kernel log.
	SameReport = 2 * time.Second
)

// maxStanding bounds the errors that events can add to one GPU.
const maxStanding = 32

// Instance identifies a MIG instance of a GPU.
type Instance struct {
	GI int
	CI int
}

// Input is what Update and Judge derive verdicts from.
type Input struct {
	// Previous is the record so far; the zero value for a new GPU.
	Previous Record
	// ScanBegan is when the scan began that Seen, Instances, Recovery, Contains, Life and Answers come from. It is zero when
	// there was no scan: Seen adds to the causes then, and the others are not used.
	ScanBegan time.Time
	// Seen are the level causes that the scan found; their Since is not used.
	Seen []gpu.Cause
	// Instances are the MIG instances that the scan found.
	Instances []Instance
	// Recovery is the driver's recovery action; empty when it does not report one (drivers before NVML field 230, lost GPUs).
	Recovery gpu.Recovery
	// Contains reports whether the GPU contains memory errors; see the function Contains.
	Contains bool
	// Life is the GPU's life in the scan.
	Life gpu.Life
	// Answers reports whether the GPU answered in the scan.
	Answers bool
	// Events are the events of this GPU. They may be older than the scan and may already be part of Previous; each counts once.
	Events []gpu.Event
	// Now is the Since of new level causes.
	Now   time.Time
	Rules Rules
}

// Update returns the record with what is new. The verdicts are those of the returned record.
//
//   - A level cause, such as GPU_LOST or ECC_DOUBLE_BIT, stands while scans find it and is cleared by the first scan that does
//     not. Its Since is the time of the first scan that found it.
//   - A reported error stands until a scan in which the GPU answers proves that it is repaired; see Record.repaired.
//   - An error of a MIG instance is also cleared when two scans, one of them more than Settle after the report, do not find the
//     instance, unless the error needs a reset: it concerns the whole GPU then.
//   - A GPU that does not answer is Gone; otherwise the worst cause decides.
func Update(in Input) Record {
	scanned := !in.ScanBegan.IsZero()
	out := in.Previous.clone()
	if scanned {
		out.Gone, out.Recovery = !in.Answers, in.Recovery
	}
	if scanned && in.Answers {
		out.Contains = in.Contains
	}
	out.Levels = levels(in, scanned)
	out.addEvents(&in)
	if !scanned || !in.Answers {
		if out.unsure() || out.blocked(&in.Rules) {
			out.Standing = breakRuns(out.Standing)
		}
		return out
	}
	out.addScan(&in)
	var stay []Standing
	for i := range out.Standing {
		s := &out.Standing[i]
		switch {
		case !out.repaired(s, &in):
			s.Missing = missing(s, in.Instances)
			stay = append(stay, *s)
		case s.Acted:
			out.forget(s)
		}
	}
	if in.Renewed() {
		out.Incidents = nil
	}
	out.Standing, out.Life = stay, in.Life
	return out
}

// addEvents adds the events of the input.
func (r *Record) addEvents(in *Input) {
	r.Standing = slices.DeleteFunc(r.Standing, func(s Standing) bool { return r.class(&s, &in.Rules) == Ignore })
	events := slices.Clone(in.Events)
	slices.SortStableFunc(events, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) })
	for _, event := range events {
		switch {
		case event.Reset:
			r.reset(event.Time)
			continue
		case event.Code == gpu.XID(xidActionChanged) && actionNamed(event.Detail):
			r.acted(event.Time)
		case event.Code == gpu.XID(xidContained) && event.Time.After(r.Contained):
			r.Contained = event.Time
		}
		fresh := Standing{
			Code: event.Code, GI: event.GI, CI: event.CI, First: event.Time, Last: event.Time,
			Log: event.Log, Decoded: decode(event.Code, event.Detail), Life: r.Life,
		}
		if event.Code.IsZero() || r.class(&fresh, &in.Rules) == Ignore {
			continue
		}
		r.count(&fresh, &in.Rules)
		if known := find(r.Standing, fresh); known != nil {
			known.join(fresh)
		} else if len(r.Standing) < maxStanding {
			r.Standing = append(r.Standing, fresh)
		}
	}
	for i := range r.Standing {
		s := &r.Standing[i]
		s.With94 = s.With94 || s.Last.Sub(r.Contained).Abs() <= SameFault
	}
}

// find returns the standing error that fresh is another report of; nil when it is a new error. The kernel log does not name the MIG
// instance, so that a line about the same XID at about the time of NVML's report counts as the same error.
func find(standing []Standing, fresh Standing) *Standing {
	same := func(s *Standing) bool { return s.Code == fresh.Code }
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

// join adds another report of the same error. A later report voids the proofs so far.
func (s *Standing) join(other Standing) {
	if s.Log && !other.Log {
		s.Log, s.GI, s.CI = false, other.GI, other.CI
	}
	if other.Last.After(s.Last) {
		s.Last, s.Life = other.Last, other.Life
		s.Reset, s.Clean, s.Acted, s.With94, s.Answered = time.Time{}, time.Time{}, false, false, 0
	}
	if other.Decoded.rank() > s.Decoded.rank() {
		s.Decoded = other.Decoded
	}
}

// missing reports whether an error is one of a MIG instance that does not exist.
func missing(s *Standing, found []Instance) bool {
	return s.GI != gpu.NoInstance && !slices.ContainsFunc(found, func(i Instance) bool {
		return i.GI == s.GI && (i.CI == s.CI || s.CI == gpu.NoInstance)
	})
}

// levels returns the level causes that the scan found, each with the Since of its first appearance; without a scan, also the
// earlier ones.
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
