package health

import (
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The hold-off of an error that takes a reset or a reboot, where the recovery action remains None: the driver may be right, its
// diagnosis may not be finished (it waits for three timeouts of 45 seconds of the GSP firmware), or it never reports another action.
const (
	// HoldOff is how long the scans must have been clean. It doubles with each incident, up to MaxHoldOff.
	HoldOff    = 5 * time.Minute
	MaxHoldOff = time.Hour
	// OneIncident is the largest distance in time between reports of one incident.
	OneIncident = time.Minute
)

// xidActionChanged is the XID that reports a change of the recovery action.
const xidActionChanged = 154

// xidFallenOff is the XID of a GPU that has fallen off the bus.
const xidFallenOff = 79

// enoughAnswers is the number of scans in which a GPU must have answered after the report that it has fallen off the bus, to
// disprove that report.
const enoughAnswers = 2

// Incident counts how often an error that takes a reset or a reboot was reported since the last proven repair.
type Incident struct {
	Code  gpu.Code  `json:"-"` // storedCode
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

// count counts a report as part of an incident. A report that was counted already does not count again.
func (r *Record) count(fresh *Standing, rules *Rules) {
	if !r.class(fresh, rules).row().needsRepair {
		return
	}
	at := slices.IndexFunc(r.Incidents, func(i Incident) bool { return i.Code == fresh.Code })
	switch {
	case at < 0 && len(r.Incidents) < maxStanding:
		r.Incidents = append(r.Incidents, Incident{Code: fresh.Code, Count: 1, Last: fresh.Last})
	case at >= 0 && fresh.Last.After(r.Incidents[at].Last):
		if fresh.Last.Sub(r.Incidents[at].Last) > OneIncident {
			r.Incidents[at].Count++
		}
		r.Incidents[at].Last = fresh.Last
	}
}

// forget drops the incidents of an error that was repaired.
func (r *Record) forget(s *Standing) {
	r.Incidents = slices.DeleteFunc(r.Incidents, func(i Incident) bool { return i.Code == s.Code })
}

// holdOff returns how long the scans after an error must be clean.
func (r *Record) holdOff(s *Standing) time.Duration {
	wait := HoldOff
	for _, i := range r.Incidents {
		for n := 1; i.Code == s.Code && n < i.Count && wait < MaxHoldOff; n++ {
			wait *= 2
		}
	}
	return min(wait, MaxHoldOff)
}

// addScan updates each standing error by a scan in which the GPU answered. Only a scan that began after the last report of an error
// counts.
func (r *Record) addScan(in *Input) {
	clean := r.Recovery == gpu.RecoveryNone && !r.unsure() && !r.blocked(&in.Rules)
	for i := range r.Standing {
		s := &r.Standing[i]
		if !in.ScanBegan.After(s.Last) {
			continue
		}
		s.Answered = min(s.Answered+1, enoughAnswers)
		if r.Recovery != "" && r.Recovery != gpu.RecoveryNone {
			s.Acted = true
		}
		switch {
		case !clean:
			s.Clean = time.Time{}
		case s.Clean.IsZero() && in.ScanBegan.After(s.Last.Add(Settle)):
			s.Clean = in.ScanBegan
		}
	}
}

// unsure reports whether reads failed: the values, the recovery action above all, are those of an earlier scan then.
func (r *Record) unsure() bool {
	return slices.ContainsFunc(r.Levels, func(level gpu.Cause) bool { return level.Code == "GPU_READ_FAILED" })
}

// blocked reports whether a level cause prevents the allocation of the GPU.
func (r *Record) blocked(rules *Rules) bool {
	return r.Gone || slices.ContainsFunc(r.Levels, func(level gpu.Cause) bool {
		return !(gpu.Health{State: r.fact(rules, level.Code).Class.state()}).OK()
	})
}

// breakRuns ends the runs of clean scans.
func breakRuns(standing []Standing) []Standing {
	for i := range standing {
		standing[i].Clean = time.Time{}
	}
	return standing
}

// reset records a reset of the GPU: each earlier error is repaired if the GPU answers the next scan.
func (r *Record) reset(at time.Time) {
	for i := range r.Standing {
		if s := &r.Standing[i]; !s.Last.After(at) {
			s.Reset = at
		}
	}
	r.Incidents = nil
}

// acted records that the driver reported a recovery action other than None.
func (r *Record) acted(at time.Time) {
	for i := range r.Standing {
		if s := &r.Standing[i]; !s.Last.After(at) {
			s.Acted = true
		}
	}
}

// repaired reports whether a scan in which the GPU answers proves that an error is repaired. These are the proofs:
//
//	any error               the GPU was gone and answers again, which takes a reset, another load of the
//	                        driver or another power-up
//	any error               a reset or a load of the driver was seen since the last report, by an event or by another Life
//	reset, reboot           the recovery action is None after another one since the last report
//	reset, reboot           the recovery action is None, and all scans were clean for the hold-off
//	other classes           the recovery action is None more than Settle after the last report
//	other classes           the MIG instance of the error no longer exists
//	an application's error  the driver does not report recovery actions, and no other fault is found after Probation
//
// A driver that does not report recovery actions proves nothing about an error that takes a reset: it stands until a reset is seen.
func (r *Record) repaired(s *Standing, in *Input) bool {
	class := r.class(s, &in.Rules)
	switch {
	case in.Previous.Gone && in.ScanBegan.After(s.Last):
		return true
	case !s.Reset.IsZero() && in.ScanBegan.After(s.Reset):
		return true
	case s.Life.EndedBefore(in.Life):
		return true
	case !in.ScanBegan.After(s.Last.Add(Settle)):
		return false
	case s.Missing && missing(s, in.Instances) && !class.row().wholeGPU:
		return true
	case r.Recovery == gpu.RecoveryNone && class.row().needsRepair:
		return s.Acted || !s.Clean.IsZero() && !in.ScanBegan.Before(s.Clean.Add(r.holdOff(s)))
	case r.Recovery == gpu.RecoveryNone:
		return true
	}
	return r.Recovery == "" && class == RestartApp && in.ScanBegan.After(s.Last.Add(Probation)) && !r.blocked(&in.Rules)
}

// Renewed reports whether the GPU was reset, had its driver loaded again, or was gone since the last scan.
func (in *Input) Renewed() bool {
	return !in.ScanBegan.IsZero() && in.Answers && (in.Previous.Gone || in.Previous.Life.EndedBefore(in.Life))
}

// actionLine matches the text of an XID 154, as in "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)".
var actionLine = regexp.MustCompile(`^GPU recovery action changed from 0x([0-9a-fA-F]{1,8}) \([^)]*\) to 0x([0-9a-fA-F]{1,8}) \(`)

// actionNamed reports whether the old or the new action in the text of an XID 154 is another one than None.
func actionNamed(detail string) bool {
	found := actionLine.FindStringSubmatch(detail)
	if found == nil {
		return false
	}
	for _, digits := range found[1:] {
		if action, err := strconv.ParseUint(digits, 16, 32); err == nil && action != 0 {
			return true
		}
	}
	return false
}
