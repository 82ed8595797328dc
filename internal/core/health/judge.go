package health

import (
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// Settle is how long after an XID a scan must begin to count as proof that the GPU
	// is well again. The driver reports an XID before its own diagnosis is finished, so
	// the recovery action may still read "none" in the first moments.
	Settle = time.Second
	// Probation is how long after an XID that only ends an application a GPU must have been free of other
	// faults, where the driver cannot say that nothing needs repair.
	Probation = time.Minute
	// SameReport is how far apart NVML and the kernel's log may tell of the same XID.
	SameReport = 2 * time.Second
)

// maxStanding bounds the errors that events can add to one GPU. A GPU with more of them is no
// better known by one more.
const maxStanding = 32

// Instance names a MIG instance of a GPU.
type Instance struct{ GI, CI int }

// Input is everything new that a judgement rests on.
type Input struct {
	// Previous is what was known; the zero value for a GPU seen for the first time.
	Previous Record
	// ScanBegan is when the scan began that Seen, Instances, Recovery, Contains, Life and Answers come from. Zero
	// means that there was no scan: then Seen only adds to the causes, and the others are not read.
	ScanBegan time.Time
	// Seen are the level causes that the scan found; their Since is not read.
	Seen []gpu.Cause
	// Instances are the MIG instances that the scan found.
	Instances []Instance
	// Recovery is what the driver says would repair the GPU; empty when it does not
	// say (drivers before NVML field 230, lost GPUs).
	Recovery gpu.Recovery
	// Contains tells whether the GPU contains memory errors (Contains).
	Contains bool
	// Life is the GPU's life in the scan.
	Life gpu.Life
	// Answers tells whether the GPU answered in the scan.
	Answers bool
	// Events are what the hardware said of this GPU. They may be older than the scan
	// and may already be part of Previous: an event counts once.
	Events []gpu.Event
	// Now stamps level causes that are new.
	Now   time.Time
	Rules Rules
}

// Judge is the verdict on a whole GPU, for those who have no history to keep.
func Judge(in Input) gpu.Health {
	record := Update(in)
	return record.Whole(in.Rules)
}

// Update takes in what is new. The verdicts are those of the record that it returns.
//
//   - A level cause (GPU_LOST, ECC_DOUBLE_BIT and so on) stands while scans find it
//     and goes with the first scan that does not. Its Since is that of its first scan.
//   - An error that was reported stands until a scan in which the GPU answers proves that it is repaired; the proofs
//     are those of Record.repaired.
//   - An error of a MIG instance goes with the instance too: when two scans, one of them more than Settle after
//     the report, do not find it. One that needs a reset is the whole GPU's.
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
	out.hear(&in)
	if !scanned || !in.Answers {
		if out.unsure() || out.blocked(&in.Rules) {
			out.Standing = breakRuns(out.Standing)
		}
		return out
	}
	out.look(&in)
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

// hear takes in the events.
func (r *Record) hear(in *Input) {
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

// find finds the standing error that a report is another report of. The kernel's log does not name the MIG
// instance: what it says at about the time at which NVML reports the same XID is the same.
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

// join takes in another report of the same error. What was proven of the error before a later report is proven no more.
func (s *Standing) join(other Standing) {
	if s.Log && !other.Log {
		s.Log, s.GI, s.CI = false, other.GI, other.CI
	}
	if other.Last.After(s.Last) {
		s.Last, s.Life = other.Last, other.Life
		s.Reset, s.Clean, s.Acted, s.With94, s.Answered = time.Time{}, time.Time{}, false, false, 0
	}
	if classRank(other.Decoded) > classRank(s.Decoded) {
		s.Decoded = other.Decoded
	}
}

func classRank(c Class) int { return slices.Index(Classes(), c) }

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
