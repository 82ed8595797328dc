package migapply

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// TestConverges starts and ends pods, changes the wanted layout, lets the driver fail and kills the agent at random. A
// held device is never removed (the model's hardware checks it); when the events end each GPU is as wanted, or waits
// for a holder that exists.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "partition")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w := newWorld(t, dir, 3)
		defer func() { w.endAgent() }()
		for _, c := range w.gpus {
			w.be(c.id, layout(t))
			w.replicas[c.id] = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "replicas")
		}
		for next := range rapid.IntRange(1, 40).Draw(t, "events") {
			w.event(t, next)
			w.intact()
		}
		w.answer()
		w.breaks, w.killAt = nil, 0
		for _, c := range w.gpus {
			c.openers = nil
		}
		w.scan()
		w.judge(w.settle())
		for _, pod := range slices.Sorted(maps.Keys(w.pods)) {
			w.end(pod)
		}
		w.settle()
		w.reached(w.wants)
	})
}

func layout(t *rapid.T) string {
	return rapid.SampledFrom([]string{
		"off", "on", "7x1g.10gb", "1x7g.80gb", "2x3g.40gb", "1x4g.40gb 1x3g.40gb", "3x1g.10gb 2x2g.20gb", "1x1g.10gb 1x3g.40gb", "2x1g.10gb", "3x2g.20gb 1x1g.10gb",
	}).Draw(t, "layout")
}

// event is an event on a node.
func (w *world) event(t *rapid.T, n int) {
	device := w.gpus[rapid.IntRange(0, len(w.gpus)-1).Draw(t, "gpu")].id
	switch what := rapid.SampledFrom([]string{"want", "unwant", "run", "run", "run", "end", "forget", "fail", "kill",
		"slow", "answer", "open", "scan", "wait", "reconcile", "reconcile"}).Draw(t, "event"); what {
	case "want":
		w.want(device, layout(t), fmt.Sprintf("change %d", n))
	case "unwant":
		w.want(device, "-", "")
	case "run":
		offered := w.devices(device)
		if len(offered) == 0 {
			return
		}
		var blocked *ledger.BlockedError
		key := rapid.SampledFrom(offered).Draw(t, "device")
		if slices.ContainsFunc(slices.Collect(maps.Values(w.pods)), func(p *fakePod) bool { return slices.Contains(p.keys, key) }) {
			return // the kubelet would not allocate it
		}
		// A device of the last scan may have been removed since, but no pod may get it.
		_, device := w.look().Device(key.Device())
		if err := w.run(fmt.Sprintf("pod-%d", n), key); err != nil && !errors.As(err, &blocked) {
			t.Fatalf("run on %s: %v", key, err)
		} else if err == nil && key.MIG != "" && device == nil {
			t.Fatalf("a pod got %s, which was removed:\n%s%v", key, w.picture(), w.trace)
		}
	case "end", "forget":
		pods := slices.Sorted(maps.Keys(w.pods))
		if len(pods) == 0 {
			return
		}
		pod := rapid.SampledFrom(pods).Draw(t, "pod")
		if what == "end" {
			w.end(pod)
			return
		}
		w.pods[pod].orphan = true
		w.compare()
	case "fail":
		calls := rapid.SliceOfN(rapid.SampledFrom([]string{"create", "destroy", "mode", "reset", "touch", "scan",
			"quiesce"}), 1, 3).Draw(t, "calls")
		w.breakNext(calls, rapid.IntRange(0, 4).Draw(t, "always") == 0)
	case "slow":
		w.slow = append(w.slow, rapid.SampledFrom([]string{"create", "destroy", "mode", "quiesce", "remove"}).Draw(t, "call")+" "+string(device))
	case "answer":
		w.answer()
	case "kill":
		w.killAt = w.points + rapid.IntRange(1, 25).Draw(t, "points")
	case "open":
		c := w.gpuOf(device)
		if c.openers != nil {
			c.openers = nil
			return
		}
		c.openers = []openers.Opener{{PID: 4711, Program: "nv-hostengine", Stop: "stop it"}}
	case "scan":
		w.scan()
	case "wait":
		w.clock.Step(firstRetry << rapid.IntRange(0, 7).Draw(t, "seconds"))
	case "reconcile":
		w.reconcile()
	}
}

// judge checks a node after the last event.
func (w *world) judge(statuses []Status) {
	w.t.Helper()
	now := w.look()
	waits := map[gpu.UUID]bool{}
	for _, s := range statuses {
		switch s.State {
		case Applied:
		case Waiting:
			waits[s.UUID] = true
			if len(s.Plan.Blockers) == 0 {
				w.t.Fatalf("%s waits without a holder: %s\n%s%v", s.UUID, s.Message, w.picture(), w.trace)
			}
			for _, blocker := range s.Plan.Blockers {
				for _, who := range blocker.Holders {
					if pod := strings.TrimPrefix(strings.Split(who, ",")[0], "default/"); w.pods[pod] == nil {
						w.t.Fatalf("%s waits for %q, which does not exist", s.UUID, who)
					}
				}
			}
			if device := now.GPU(s.UUID); len(device.MIG.Empty) > 0 {
				w.t.Fatalf("%s has empty instances:\n%s%v", s.UUID, w.picture(), w.trace)
			}
		default:
			w.t.Fatalf("%s is %s: %s\n%s%v", s.UUID, s.State, s.Message, w.picture(), w.trace)
		}
	}
	for _, held := range w.book.Holdings() {
		if held.Holder.Kind == gpu.HolderMaintenance && !waits[held.Key.GPU] {
			w.t.Fatalf("maintenance without a reason:\n%s%v", w.picture(), w.trace)
		}
	}
}
