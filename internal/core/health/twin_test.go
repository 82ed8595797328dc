package health_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// report is one error as the twin stores it; gi is -1 for the whole GPU.
type report struct {
	xid uint64
	gi  int
	// at are the times of the reports, missed counts the scans in a row that did not find the instance.
	at     []time.Time
	missed int
	// driver is the driver's load in the last scan before the last report.
	driver string
}

// last is when it was reported last.
func (r *report) last() time.Time { return r.at[len(r.at)-1] }

// look is one scan as the twin stores it.
type look struct {
	began    time.Time
	answers  bool
	clean    bool
	recovery gpu.Recovery
}

// twin judges in a slow and simple way, with the states listed explicitly: it keeps the whole history.
type twin struct {
	reports  []*report
	levels   []string
	gone     bool
	recovery gpu.Recovery
	contains bool
	driver   string
	looks    []look
	resets   []time.Time
	// contained are the times of the XIDs 94, counted those of each error that needs a repair since it was last
	// repaired.
	contained []time.Time
	counted   map[uint64][]time.Time
}

// level is the state for each level cause, from the mildest to the worst.
func (w *twin) level(code string) int {
	switch code {
	case "THROTTLE_THERMAL", "NVLINK_DOWN":
		return 1
	case "ROW_REMAP_FAILURE":
		return 3
	case "ECC_SRAM_UNCORRECTABLE":
		return 4
	case "ECC_DOUBLE_BIT":
		return w.memory()
	case "RECOVERY_ACTION":
		switch w.recovery {
		case gpu.RecoveryGPUReset, gpu.RecoveryDrainAndReset:
			return max(w.memory(), 2)
		}
		return 3
	}
	panic(code)
}

// memory returns the state for a contained memory error.
func (w *twin) memory() int {
	switch {
	case w.contains && w.recovery == gpu.RecoveryNone:
		return 1
	case w.contains && w.recovery == gpu.RecoveryDrainAndReset:
		return 2
	}
	return 4
}

// rank returns the state for an error; whole is true when it concerns the whole GPU, repair when time alone does not
// clear it, and app when it ends with the application.
func (w *twin) rank(r *report) (rank int, whole, repair, app bool) {
	switch r.xid {
	case 13, 63:
		return 0, false, false, false
	case 3:
		return 1, false, false, false
	case 94, 69:
		switch {
		case w.recovery == gpu.RecoveryNone:
			rank = 1
		case w.recovery == gpu.RecoveryDrainAndReset && w.contains:
			rank = 2
		default:
			rank = 3
		}
		return rank, false, false, true
	case 142:
		return 3, false, false, false
	case 48:
		near := func(at time.Time) bool { return at.Sub(r.last()).Abs() <= 5*time.Second }
		if w.contains && slices.ContainsFunc(w.contained, near) {
			rank = w.memory()
			return rank, rank > 1, rank > 2, false
		}
		return 4, true, true, false
	case 119:
		return 4, true, true, false
	case 79:
		answered := 0
		for _, l := range w.since(r) {
			if l.answers {
				answered++
			}
		}
		if answered >= 2 {
			return 4, true, true, false
		}
		return 5, true, true, false
	}
	panic(r.xid)
}

// since are the scans that began after the last report.
func (w *twin) since(r *report) []look {
	return slices.DeleteFunc(slices.Clone(w.looks), func(l look) bool { return !l.began.After(r.last()) })
}

func code(xid uint64) string { return fmt.Sprintf("XID%d", xid) }

func (w *twin) event(xid uint64, gi int, at time.Time) {
	if xid == 94 {
		w.contained = append(w.contained, at)
	}
	at1 := slices.IndexFunc(w.reports, func(r *report) bool { return r.xid == xid && r.gi == gi })
	if at1 < 0 {
		at1 = len(w.reports)
		w.reports = append(w.reports, &report{xid: xid, gi: gi})
	}
	r := w.reports[at1]
	// Whether it is counted is decided before it is known that an XID 94 came with it.
	if xid == 48 || xid == 119 || xid == 79 {
		w.counted[xid] = append(w.counted[xid], at)
	}
	r.at, r.driver = append(r.at, at), w.driver
	if rank, _, _, _ := w.rank(r); rank == 0 {
		w.reports = slices.Delete(w.reports, at1, at1+1)
	}
}

func (w *twin) reset(at time.Time) {
	w.resets = append(w.resets, at)
	clear(w.counted)
}

// holdOff is five minutes, and twice as long for each incident but the first.
func (w *twin) holdOff(xid uint64) time.Duration {
	hold, times := 5*time.Minute, w.counted[xid]
	for i := range times {
		if i > 0 && times[i].Sub(times[i-1]) > time.Minute {
			hold = min(2*hold, time.Hour)
		}
	}
	return hold
}

func (w *twin) scan(began time.Time, answers bool, recovery gpu.Recovery, contains bool, driver string, levels []string, instances []int) {
	back := w.gone && answers
	w.gone, w.recovery, w.levels = !answers, recovery, levels
	if answers {
		w.contains = contains
	}
	blocking := false
	for _, level := range levels {
		blocking = blocking || w.level(level) >= 2
	}
	w.looks = append(w.looks, look{began, answers, answers && recovery == gpu.RecoveryNone && !blocking, recovery})
	var stay []*report
	var forget []uint64
	for _, r := range w.reports {
		age := began.Sub(r.last())
		_, whole, repair, app := w.rank(r)
		missing := r.gi >= 0 && !slices.Contains(instances, r.gi)
		acted := false
		var clean time.Time
		for _, l := range w.since(r) {
			acted = acted || l.answers && l.recovery != "" && l.recovery != gpu.RecoveryNone
			switch {
			case !l.clean:
				clean = time.Time{}
			case clean.IsZero() && l.began.Sub(r.last()) > time.Second:
				clean = l.began
			}
		}
		seen := slices.ContainsFunc(w.resets, func(at time.Time) bool { return !at.Before(r.last()) && began.After(at) })
		held := !clean.IsZero() && began.Sub(clean) >= w.holdOff(r.xid)
		none := recovery == gpu.RecoveryNone && age > time.Second
		proofs := []bool{
			back && age > 0,
			seen,
			driver != "" && r.driver != "" && driver != r.driver,
			none && (!repair || acted || held),
			recovery == "" && app && !blocking && age > time.Minute,
			missing && r.missed > 0 && !whole && age > time.Second,
		}
		if answers && slices.Contains(proofs, true) {
			if acted {
				forget = append(forget, r.xid)
			}
			continue
		}
		if answers && missing {
			r.missed++
		} else if answers {
			r.missed = 0
		}
		stay = append(stay, r)
	}
	for _, xid := range forget {
		delete(w.counted, xid)
	}
	if back || answers && driver != "" && w.driver != "" && driver != w.driver {
		clear(w.counted)
	}
	if answers {
		w.driver = driver
	}
	w.reports = stay
}

// verdict prints state and causes; gi is -1 for the GPU.
func (w *twin) verdict(gi int) string {
	names := []gpu.State{gpu.Healthy, gpu.Degraded, gpu.Draining, gpu.Unhealthy, gpu.NeedsReset, gpu.NeedsReboot}
	worst := 0
	var codes []string
	for _, r := range w.reports {
		rank, whole, _, _ := w.rank(r)
		if r.gi == -1 || r.gi == gi || whole {
			worst = max(worst, rank)
			codes = append(codes, code(r.xid))
		}
	}
	for _, level := range w.levels {
		worst = max(worst, w.level(level))
		codes = append(codes, level)
	}
	slices.Sort(codes)
	state := names[worst]
	if w.gone {
		state = gpu.Gone
	}
	return fmt.Sprint(state, slices.Compact(codes))
}

func summary(h gpu.Health) string {
	codes := []string{}
	for _, cause := range h.Causes {
		codes = append(codes, cause.Code)
	}
	slices.Sort(codes)
	return fmt.Sprint(h.State, codes)
}

// TestVerdictsMatchTwin runs random sequences of faults, recoveries and restarts on a GPU with three MIG devices.
func TestVerdictsMatchTwin(t *testing.T) {
	sequences := 1000
	if os.Getenv("BERTH_SOAK") != "" {
		sequences = 10_000
	}
	states := map[gpu.State]int{}
	for seed := range uint64(sequences) {
		playSequence(t, seed, states)
		if t.Failed() {
			t.Fatalf("sequence %d", seed)
		}
	}
	t.Logf("[walks] %d sequences, verdicts seen: %v", sequences, states)
	for _, state := range []gpu.State{gpu.Healthy, gpu.Degraded, gpu.Draining, gpu.Unhealthy, gpu.NeedsReset, gpu.NeedsReboot, gpu.Gone} {
		if states[state] == 0 {
			t.Errorf("no sequence led to %s", state)
		}
	}
}

func playSequence(t *testing.T, seed uint64, states map[gpu.State]int) {
	random := rand.New(rand.NewPCG(seed, 4))
	w := &twin{counted: map[uint64][]time.Time{}}
	driver, contains := "1", random.IntN(2) == 0
	var record health.Record
	now := start
	var story strings.Builder
	for range 5 + random.IntN(40) {
		pauses := []int{1, 400, 900, 1500, 5000, 30_000, 61_000, 301_000, 601_000}
		now = now.Add(time.Duration(pauses[random.IntN(len(pauses))]) * time.Millisecond)
		switch random.IntN(6) {
		case 0, 1:
			xid := []uint64{3, 13, 63, 94, 94, 69, 142, 48, 48, 119, 79}[random.IntN(11)]
			gi := []int{-1, 3, 4, 5}[random.IntN(4)]
			fmt.Fprintf(&story, "%v event %d on %d\n", now.Sub(start), xid, gi)
			ci := min(gi, 0)
			event := gpu.Event{Code: gpu.XID(xid), GI: gi, CI: ci, Time: now}
			record = health.Update(health.Input{Previous: record, Events: []gpu.Event{event}, Now: now})
			w.event(xid, gi, now)
		case 2, 3:
			in := health.Input{Previous: record, ScanBegan: now, Now: now, Answers: random.IntN(6) > 0}
			in.Recovery = []gpu.Recovery{
				"", gpu.RecoveryNone, gpu.RecoveryNone, gpu.RecoveryNone, gpu.RecoveryGPUReset, gpu.RecoveryDrainAndReset,
			}[random.IntN(6)]
			in.Contains = contains
			var levels []string
			for _, level := range []string{"THROTTLE_THERMAL", "NVLINK_DOWN", "ROW_REMAP_FAILURE", "ECC_DOUBLE_BIT", "ECC_SRAM_UNCORRECTABLE", "RECOVERY_ACTION"} {
				if random.IntN(9) == 0 {
					levels = append(levels, level)
					in.Seen = append(in.Seen, gpu.Cause{Code: level, Message: "seen"})
				}
			}
			var instances []int
			for _, gi := range []int{3, 4, 5} {
				if random.IntN(3) > 0 {
					instances = append(instances, gi)
					in.Instances = append(in.Instances, health.Instance{GI: gi})
				}
			}
			if random.IntN(12) == 0 {
				driver += "1"
			}
			in.Life.Driver = []string{driver, driver, driver, ""}[random.IntN(4)]
			fmt.Fprintf(&story, "%v scan answers=%v recovery=%q contains=%v driver=%q levels=%v instances=%v\n",
				now.Sub(start), in.Answers, in.Recovery, contains, in.Life.Driver, levels, instances)
			record = health.Update(in)
			w.scan(now, in.Answers, in.Recovery, contains, in.Life.Driver, levels, instances)
		case 4:
			if random.IntN(3) > 0 {
				continue
			}
			fmt.Fprintf(&story, "%v reset\n", now.Sub(start))
			record = health.Update(health.Input{Previous: record, Events: []gpu.Event{{Reset: true, Time: now}}, Now: now})
			w.reset(now)
		case 5:
			blob, err := json.Marshal(record)
			record = health.Record{}
			if err != nil || json.Unmarshal(blob, &record) != nil {
				t.Fatal("a record does not survive a restart")
			}
		}
		for _, gi := range []int{-1, 3, 4, 5} {
			verdict := record.Whole(health.Rules{})
			if gi >= 0 {
				verdict = record.MIG(health.Rules{}, gi, 0)
			}
			states[verdict.State]++
			if got, want := summary(verdict), w.verdict(gi); got != want {
				t.Errorf("GI %d: got %s; want %s, after\n%s", gi, got, want, story.String())
				return
			}
			for _, cause := range verdict.Causes {
				if slices.Contains([]string{"XID119", "XID79", "ROW_REMAP_FAILURE", "ECC_SRAM_UNCORRECTABLE", "RECOVERY_ACTION"}, cause.Code) && verdict.OK() {
					t.Errorf("GI %d is allocatable while %s stands, after\n%s", gi, cause.Code, story.String())
				}
			}
		}
	}
}
