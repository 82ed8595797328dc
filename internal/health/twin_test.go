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

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/health"
)

// report is one error as the twin remembers it; gi is -1 for the whole card.
type report struct {
	xid uint64
	gi  int
	// at are the times of the reports, missed counts the scans in a row that did not find the instance.
	at     []time.Time
	missed int
}

// twin judges the slow and simple way, with the states written down by hand.
type twin struct {
	reports  []*report
	levels   []string
	gone     bool
	recovery gpu.Recovery
}

// stateOf is what each XID and each level cause gives, from the mildest to the worst; app tells that it ends with the application.
func stateOf(code string, recovery gpu.Recovery) (rank int, app bool) {
	switch code {
	case "XID13", "XID63":
		return 0, false
	case "THROTTLE_THERMAL", "NVLINK_DOWN":
		return 1, false
	case "XID94", "XID69":
		return 2, true
	case "XID142", "ROW_REMAP_FAILURE":
		return 2, false
	case "XID48", "XID119", "ECC_DOUBLE_BIT":
		return 3, false
	case "XID79":
		return 4, false
	case "RECOVERY_ACTION":
		if recovery == gpu.RecoveryGPUReset {
			return 3, false
		}
		return 2, false
	}
	panic(code)
}

func code(xid uint64) string { return fmt.Sprintf("XID%d", xid) }

func (w *twin) event(xid uint64, gi int, at time.Time) {
	if rank, _ := stateOf(code(xid), ""); rank == 0 {
		return
	}
	for _, r := range w.reports {
		if r.xid == xid && r.gi == gi {
			r.at = append(r.at, at)
			return
		}
	}
	w.reports = append(w.reports, &report{xid: xid, gi: gi, at: []time.Time{at}})
}

func (w *twin) scan(began time.Time, answers bool, recovery gpu.Recovery, levels []string, instances []int) {
	back := w.gone && answers
	w.gone, w.recovery, w.levels = !answers, recovery, levels
	blocking := false
	for _, level := range levels {
		rank, _ := stateOf(level, recovery)
		blocking = blocking || rank >= 2
	}
	var stay []*report
	for _, r := range w.reports {
		age := began.Sub(r.at[len(r.at)-1])
		rank, app := stateOf(code(r.xid), "")
		missing := r.gi >= 0 && !slices.Contains(instances, r.gi)
		proofs := []bool{
			back && age > 0,
			recovery == gpu.RecoveryNone && age > time.Second,
			recovery == "" && app && !blocking && age > time.Minute,
			missing && r.missed > 0 && rank < 3 && age > time.Second,
		}
		if answers && slices.Contains(proofs, true) {
			continue
		}
		if answers && missing {
			r.missed++
		} else if answers {
			r.missed = 0
		}
		stay = append(stay, r)
	}
	w.reports = stay
}

// verdict prints state and causes; gi is -1 for the card.
func (w *twin) verdict(gi int) string {
	names := []gpu.State{gpu.Healthy, gpu.Degraded, gpu.Unhealthy, gpu.NeedsReset, gpu.NeedsReboot}
	worst := 0
	var codes []string
	for _, r := range w.reports {
		rank, _ := stateOf(code(r.xid), "")
		if r.gi == -1 || r.gi == gi || rank >= 3 {
			worst = max(worst, rank)
			codes = append(codes, code(r.xid))
		}
	}
	for _, level := range w.levels {
		rank, _ := stateOf(level, w.recovery)
		worst = max(worst, rank)
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

// TestVerdictsMatchTwin plays random sequences of faults, recoveries and restarts on a card with three MIG devices.
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
	for _, state := range []gpu.State{gpu.Healthy, gpu.Degraded, gpu.Unhealthy, gpu.NeedsReset, gpu.NeedsReboot, gpu.Gone} {
		if states[state] == 0 {
			t.Errorf("no sequence led to %s", state)
		}
	}
}

func playSequence(t *testing.T, seed uint64, states map[gpu.State]int) {
	random := rand.New(rand.NewPCG(seed, 4))
	w := &twin{}
	var record health.Record
	now := start
	var story strings.Builder
	for range 5 + random.IntN(40) {
		pauses := []int{1, 400, 900, 1500, 5000, 30_000, 61_000}
		now = now.Add(time.Duration(pauses[random.IntN(len(pauses))]) * time.Millisecond)
		switch random.IntN(5) {
		case 0, 1:
			xid := []uint64{13, 63, 94, 69, 142, 48, 119, 79}[random.IntN(8)]
			gi := []int{-1, 3, 4, 5}[random.IntN(4)]
			fmt.Fprintf(&story, "%v event %d on %d\n", now.Sub(start), xid, gi)
			ci := min(gi, 0)
			event := gpu.Event{XID: xid, GI: gi, CI: ci, Time: now}
			record = health.Update(health.Input{Previous: record, Events: []gpu.Event{event}, Now: now})
			w.event(xid, gi, now)
		case 2, 3:
			in := health.Input{Previous: record, ScanBegan: now, Now: now, Answers: random.IntN(6) > 0}
			in.Recovery = []gpu.Recovery{"", "", gpu.RecoveryNone, gpu.RecoveryGPUReset}[random.IntN(4)]
			var levels []string
			for _, level := range []string{"THROTTLE_THERMAL", "NVLINK_DOWN", "ROW_REMAP_FAILURE", "ECC_DOUBLE_BIT", "RECOVERY_ACTION"} {
				if random.IntN(6) == 0 {
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
			fmt.Fprintf(&story, "%v scan answers=%v recovery=%q levels=%v instances=%v\n", now.Sub(start), in.Answers, in.Recovery, levels, instances)
			record = health.Update(in)
			w.scan(now, in.Answers, in.Recovery, levels, instances)
		case 4:
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
				if rank, _ := stateOf(cause.Code, record.Recovery); rank >= 2 && verdict.OK() {
					t.Errorf("GI %d is given out while %s stands, after\n%s", gi, cause.Code, story.String())
				}
			}
		}
	}
}
