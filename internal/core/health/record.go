package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Record is the state of a GPU's health between two updates. The zero value is that of a new GPU. It is a plain value that can be
// kept over a restart.
type Record struct {
	// Standing are the reported errors that are not yet known to be repaired, at most maxStanding.
	Standing []Standing `json:"standing,omitempty"`
	// Levels are the causes that the last scan found, each with the Since of its first scan.
	Levels []gpu.Cause `json:"levels,omitempty"`
	// Gone is true for a GPU that did not answer the last scan.
	Gone     bool         `json:"gone,omitempty"`
	Recovery gpu.Recovery `json:"recovery,omitempty"`
	// Contains reports whether the GPU contains memory errors, Contained is the time of the last XID 94.
	Contains  bool      `json:"contains,omitempty"`
	Contained time.Time `json:"contained,omitzero"`
	// Life is the GPU's life in the last scan in which it answered.
	Life gpu.Life `json:"life,omitzero"`
	// Incidents outlast the errors that they count, at most maxStanding.
	Incidents []Incident `json:"incidents,omitempty"`
}

// clone returns a copy that shares no mutable state.
func (r *Record) clone() Record {
	out := *r
	out.Standing, out.Levels, out.Incidents = slices.Clone(r.Standing), slices.Clone(r.Levels), slices.Clone(r.Incidents)
	return out
}

// Restored returns a record of an earlier process with no time later than now. Otherwise a clock that was set back would block a
// device for that long.
func (r *Record) Restored(now time.Time) Record {
	out := r.clone()
	clamp := func(t *time.Time) {
		if t.After(now) {
			*t = now
		}
	}
	clamp(&out.Contained)
	for i := range out.Standing {
		s := &out.Standing[i]
		clamp(&s.First)
		clamp(&s.Last)
		clamp(&s.Reset)
		clamp(&s.Clean)
	}
	for i := range out.Incidents {
		clamp(&out.Incidents[i].Last)
	}
	return out
}

// Idle reports whether the record has nothing that must be kept over a restart.
func (r *Record) Idle() bool { return len(r.Standing) == 0 && len(r.Incidents) == 0 && !r.Gone }

// Standing is a reported error that is not yet known to be repaired.
type Standing struct {
	Code gpu.Code `json:"-"` // storedCode
	// GI and CI are the MIG instance concerned, or gpu.NoInstance.
	GI int `json:"gi"`
	CI int `json:"ci"`
	// First and Last are when it was reported first and last.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Log is true while only the kernel log reported it.
	Log bool `json:"log,omitempty"`
	// Decoded is the class from the details of the report; empty where there were none.
	Decoded Class `json:"decoded,omitempty"`
	// Missing is true when the last scan did not find the MIG instance.
	Missing bool `json:"missing,omitempty"`

	// Since the last report: Reset is when the GPU was reset, Acted whether the driver reported a recovery action, Clean when the
	// present run of clean scans began, Answered the number of scans in which the GPU answered, at most enoughAnswers.
	Reset    time.Time `json:"reset,omitzero"`
	Acted    bool      `json:"acted,omitempty"`
	Clean    time.Time `json:"clean,omitzero"`
	Answered int       `json:"answered,omitempty"`
	// With94 is true when an XID 94 was reported at about the same time.
	With94 bool `json:"with94,omitempty"`
	// Life is the GPU's life in the last scan before the report.
	Life gpu.Life `json:"life,omitzero"`
}

// concerns reports whether the error concerns a MIG device, or the whole GPU for gpu.NoInstance twice.
func (s *Standing) concerns(class Class, gi, ci int) bool {
	switch {
	case s.GI == gpu.NoInstance || class.row().wholeGPU:
		return true
	case gi != s.GI:
		return false
	}
	return s.CI == gpu.NoInstance || ci == s.CI
}

func (s *Standing) cause(class Class) gpu.Cause {
	cause := gpu.Cause{Code: s.Code.String(), Since: s.First, Recover: class.Fix()}
	where := ""
	if s.Log {
		where = " in the kernel log"
	}
	switch {
	case s.GI != gpu.NoInstance && s.CI != gpu.NoInstance:
		where += fmt.Sprintf(" on its MIG instance GI %d CI %d", s.GI, s.CI)
	case s.GI != gpu.NoInstance:
		where += fmt.Sprintf(" on its GPU instance %d", s.GI)
	}
	switch s.Code.Kind {
	case gpu.KindXID:
		cause.Message = fmt.Sprintf("the driver reported XID %d%s: %s", s.Code.Number, where, LookupXID(s.Code.Number).Meaning)
	case gpu.KindSXID:
		cause.Message = fmt.Sprintf("an NVSwitch reported the fatal SXID %d%s", s.Code.Number, where)
	default:
		cause.Message = fmt.Sprintf("the driver reported the error code %s%s", s.Code, where)
	}
	return cause
}

// Whole returns the verdict on the GPU, without the errors that concern one of its MIG devices only.
func (r *Record) Whole(rules Rules) gpu.Health {
	return r.verdict(&rules, gpu.NoInstance, gpu.NoInstance)
}

// MIG returns the verdict on one of the GPU's MIG devices, including the errors that concern the whole GPU.
func (r *Record) MIG(rules Rules, gi, ci int) gpu.Health { return r.verdict(&rules, gi, ci) }

func (r *Record) verdict(rules *Rules, gi, ci int) gpu.Health {
	out := gpu.Health{State: gpu.Healthy, Recovery: r.Recovery}
	worsen := func(state gpu.State) {
		if state.Worse(out.State) {
			out.State = state
		}
	}
	add := func(cause gpu.Cause, state gpu.State) {
		out.Causes = append(out.Causes, cause)
		worsen(state)
	}
	for i := range r.Standing {
		s := &r.Standing[i]
		class := r.class(s, rules)
		if class == Ignore || !s.concerns(class, gi, ci) {
			continue
		}
		// A code that several instances reported is one cause on each of them, and one on the GPU.
		if slices.ContainsFunc(out.Causes, func(c gpu.Cause) bool { return c.Code == s.Code.String() }) {
			worsen(r.state(class))
			continue
		}
		add(s.cause(class), r.state(class))
	}
	for _, level := range r.Levels {
		fact := r.fact(rules, level.Code)
		if fact.Class == Ignore && !r.Gone {
			continue
		}
		level.Recover = cmp.Or(level.Recover, fact.Recover)
		add(level, fact.Class.state())
	}
	slices.SortFunc(out.Causes, CompareCauses)
	if r.Gone {
		out.State = gpu.Gone
	}
	return out
}

// fact returns the entry of a level cause, with the class that the rules give it.
func (r *Record) fact(rules *Rules, code string) Fact {
	fact := lookupFact(code, r.Recovery, r.Contains)
	if class, ok := rules.Overrides[code]; ok {
		fact.Class = class
	} else if rules.Checks.NoFacts {
		fact.Class = Ignore
	}
	return fact
}

// Has reports whether an error stands, on any part of the GPU.
func (r *Record) Has(code gpu.Code) bool {
	return slices.ContainsFunc(r.Standing, func(s Standing) bool { return s.Code == code })
}

// CompareCauses orders causes by Since, Code and Message.
func CompareCauses(a, b gpu.Cause) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
}
