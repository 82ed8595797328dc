package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// resetLab plays the parts of an agent for a resetter, and notes what is done to them.
type resetLab struct {
	*resetter
	did      []string
	holdings []ledger.Holding
	// users have the GPU open; each look takes the first of the list away.
	users    [][]migapply.Opener
	resetErr error
	health   gpu.Health
	now      time.Time
}

func newResetLab(t *testing.T) *resetLab {
	l := &resetLab{now: time.Unix(1000, 0), health: gpu.Health{State: gpu.Healthy}}
	note := func(what string) error { l.did = append(l.did, what); return nil }
	l.resetter = &resetter{
		current: func() *gpu.Snapshot {
			return &gpu.Snapshot{GPUs: []gpu.GPU{
				{UUID: "GPU-aa11", Index: 0, PCI: gpu.PCIAddress{Bus: 0x1b}, Health: l.health}, {UUID: "GPU-aa22", Index: 1, PCI: gpu.PCIAddress{Bus: 0x3b}},
			}}
		},
		rescan: func(context.Context) error { return note("scan") },
		ledger: l,
		openers: func(context.Context, gpu.UUID) ([]migapply.Opener, error) {
			if len(l.users) == 0 {
				return nil, nil
			}
			now := l.users[0]
			l.users = l.users[1:]
			return now, nil
		},
		quiesce: func(_ context.Context, id gpu.UUID) error { return note("quiesce " + string(id)) },
		resume:  func(id gpu.UUID) { note("resume " + string(id)) },
		reset:   func(_ context.Context, id gpu.UUID) error { note("reset " + string(id)); return l.resetErr },
		lock:    filepath.Join(t.TempDir(), resetLock),
		after: func(long time.Duration) <-chan time.Time {
			l.now = l.now.Add(long)
			done := make(chan time.Time, 1)
			done <- l.now
			return done
		},
		now: func() time.Time { return l.now },
	}
	return l
}

func (l *resetLab) Acquire(holder ledger.Holder, keys []gpu.DeviceKey) error {
	if len(l.holdings) > 0 && l.holdings[0].Holder != holder {
		return errors.New("barred")
	}
	l.did = append(l.did, fmt.Sprint("take ", keys))
	l.holdings = []ledger.Holding{{Key: keys[0], Holder: holder}}
	return nil
}

func (l *resetLab) Release(holder ledger.Holder, keys []gpu.DeviceKey) error {
	l.did = append(l.did, fmt.Sprint("give back ", keys))
	l.holdings = nil
	return nil
}

func (l *resetLab) Holdings() []ledger.Holding { return slices.Clone(l.holdings) }

func TestResetSteps(t *testing.T) {
	dcgm := []migapply.Opener{{PID: 7, Program: "dcgm-exporter", Stop: "stop DCGM"}}
	whole := []string{"take [GPU-aa11]", "quiesce GPU-aa11", "reset GPU-aa11", "scan", "resume GPU-aa11", "give back [GPU-aa11]"}
	for name, test := range map[string]struct {
		reference string
		wait      time.Duration
		prepare   func(l *resetLab)
		err       string
		did       []string
		told      string
	}{
		"free":        {reference: "0", did: whole, told: "offered again"},
		"by UUID":     {reference: "GPU-aa11", did: whole},
		"by bus ID":   {reference: "0000:1b:00.0", did: whole},
		"no such GPU": {reference: "7", err: `this node has no GPU "7"; it has 2 GPUs (berth gpus --node-local lists them)`},
		"two GPUs":    {reference: "GPU-aa", err: `2 GPUs of this node begin with "GPU-aa"; write more of the UUID`},
		"held by a pod": {reference: "0", prepare: func(l *resetLab) {
			l.holdings = []ledger.Holding{{Key: gpu.DeviceKey{GPU: "GPU-aa11"}, Holder: ledger.Holder{Kind: ledger.Pod, Namespace: "ml", Pod: "train", PodUID: "u"}}}
		}, err: "GPU 0 (GPU-aa11) is in use: held by pod ml/train (fix: delete the pods that hold it, or wait for the end with --wait)"},
		"opened": {reference: "0", prepare: func(l *resetLab) { l.users = [][]migapply.Opener{dcgm} },
			err: "GPU 0 (GPU-aa11) is in use: process 7 (dcgm-exporter) has it open (fix: stop DCGM, or wait for the end with --wait)",
			did: []string{"take [GPU-aa11]", "give back [GPU-aa11]"}},
		"opened, and waited for": {reference: "0", wait: time.Minute, prepare: func(l *resetLab) { l.users = [][]migapply.Opener{dcgm, dcgm} },
			did: append([]string{"take [GPU-aa11]", "give back [GPU-aa11]", "take [GPU-aa11]", "give back [GPU-aa11]"}, whole...), told: "process 7 (dcgm-exporter) has it open; waiting"},
		"opened for too long": {reference: "0", wait: 2 * time.Second, prepare: func(l *resetLab) {
			for range 9 {
				l.users = append(l.users, dcgm)
			}
		}, err: "is in use: process 7"},
		"refused": {reference: "0", prepare: func(l *resetLab) { l.resetErr = errors.New("nvidia-smi says no") }, err: "nvidia-smi says no",
			did: []string{"take [GPU-aa11]", "quiesce GPU-aa11", "reset GPU-aa11", "resume GPU-aa11", "give back [GPU-aa11]"}},
		"in vain": {reference: "0", prepare: func(l *resetLab) {
			l.health = gpu.Health{State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "ROW_REMAP_FAILURE", Message: "no rows"}}}
		}, did: whole, err: "GPU 0 (GPU-aa11): it was reset and is still Unhealthy: ROW_REMAP_FAILURE: no rows"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newResetLab(t)
			if test.prepare != nil {
				test.prepare(l)
			}
			var told []string
			_, err := l.run(t.Context(), test.reference, test.wait, func(m string) { told = append(told, m) })
			if text := fmt.Sprint(err); (err != nil) != (test.err != "") || !strings.Contains(text, test.err) {
				t.Errorf("error %v; want %q", err, test.err)
			}
			if diff := cmp.Diff(test.did, l.did); test.did != nil && diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if !strings.Contains(strings.Join(told, "\n"), test.told) {
				t.Errorf("told %q; want %q in it", told, test.told)
			}
			if len(l.holdings) > 0 && l.holdings[0].Holder == l.holder() {
				t.Error("the GPU stays under maintenance")
			}
		})
	}
}

// TestResetThatDied leaves a holding in the ledger, which the next agent gives back; not while another one resets.
func TestResetThatDied(t *testing.T) {
	l := newResetLab(t)
	l.holdings = []ledger.Holding{{Key: gpu.DeviceKey{GPU: "GPU-aa11"}, Holder: l.holder()}}
	release, err := l.take()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.run(t.Context(), "1", 0, func(string) {}); !errors.Is(err, errResetting) {
		t.Errorf("a second reset: %v; want %v", err, errResetting)
	}
	if err := l.forget(); err != nil || len(l.holdings) == 0 {
		t.Errorf("while another agent resets: %v, %v", err, l.holdings)
	}
	release()
	if err := l.forget(); err != nil || len(l.holdings) > 0 {
		t.Errorf("after it: %v, %v", err, l.holdings)
	}
}

// TestResetByCommand has a driver without recovery actions, where an error that takes a reset stands until one is seen.
func TestResetByCommand(t *testing.T) {
	b := newBench(t, "h100x8")
	b.await(healthy(8))
	id := string(b.uuid(2))
	if err := b.machine.Inject(sim.Fault{GPU: id, XID: 48, Recovery: sim.RecoveryUnsupported}); err != nil {
		t.Fatal(err)
	}
	b.await(healthy(7))
	socket := filepath.Join(b.agent.config.StateDir, pages.Name)
	awaitTrue(t, "an agent on "+socket, func() bool { return Probe(t.Context(), socket, "readyz") == nil })
	ask := func(query string) (v1alpha1.GPUReset, []string) {
		t.Helper()
		response, err := pages.Client{Socket: socket}.Do(t.Context(), http.MethodPost, "/v1/reset?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var told []string
		for lines := json.NewDecoder(response.Body); ; {
			var line v1alpha1.GPUResetLine
			if err := lines.Decode(&line); err != nil {
				t.Fatal(err)
			}
			if line.Result != nil {
				return *line.Result, told
			}
			told = append(told, line.Step.Message)
		}
	}
	if err := b.machine.OpenGPU(id, sim.Opener{PID: 4711, Program: "dcgm-exporter"}); err != nil {
		t.Fatal(err)
	}
	if result, _ := ask("gpu=2"); result.Done || !strings.Contains(result.Error, "process 4711 (dcgm-exporter) has it open") {
		t.Errorf("a GPU that a process uses was reset: %+v", result)
	}
	b.await(healthy(7))
	if err := b.machine.CloseGPU(id, 4711); err != nil {
		t.Fatal(err)
	}
	result, told := ask("gpu=2&wait=30s")
	if !result.Done || result.UUID != id || result.State != "Healthy" || result.Kind != v1alpha1.KindGPUReset || len(told) < 3 {
		t.Errorf("got %+v after %q", result, told)
	}
	b.await(healthy(8))
	if _, err := (pages.Client{Socket: socket}).Do(t.Context(), http.MethodPost, "/v1/reset", bytes.NewReader(nil)); err == nil || !strings.Contains(err.Error(), "which GPU?") {
		t.Errorf("no GPU named: %v", err)
	}
}
