package reset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// lab is a Resetter with fakes that record their calls.
type lab struct {
	*Resetter
	did      []string
	holdings []ledger.Holding
	// users have the GPU open; each check removes the first entry.
	users      [][]openers.Opener
	openersErr error
	// blocked is the ledger's refusal when the GPU is not held.
	blocked    error
	releaseErr error
	quiesceErr error
	resetErr   error
	refreshErr error
	health     gpu.Health
	mig        []gpu.MIGDevice
	// gone removes the GPU from the inventory after the reset.
	gone bool
}

func newLab(t *testing.T) *lab {
	l := &lab{health: gpu.Health{State: gpu.Healthy}}
	l.Resetter = New(Deps{
		Dir: t.TempDir(), Hardware: l, Ledger: l,
		Openers: func(context.Context, gpu.UUID) ([]openers.Opener, error) {
			if len(l.users) == 0 {
				return nil, l.openersErr
			}
			now := l.users[0]
			l.users = l.users[1:]
			return now, nil
		},
		Quiesce: func(_ context.Context, id gpu.UUID) error { l.note("quiesce " + string(id)); return l.quiesceErr },
		Resume:  func(id gpu.UUID) { l.note("resume " + string(id)) },
		Reset: func(_ context.Context, id gpu.UUID) error {
			l.note("reset " + string(id))
			return l.resetErr
		},
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	return l
}

func (l *lab) note(what string) { l.did = append(l.did, what) }

func (l *lab) Current() *gpu.Snapshot {
	first := gpu.GPU{UUID: "GPU-aa11", Index: 0, PCI: gpu.PCIAddress{Bus: 0x1b}, Health: l.health, MIG: gpu.MIG{Devices: l.mig}}
	second := gpu.GPU{UUID: "GPU-aa22", Index: 1, PCI: gpu.PCIAddress{Bus: 0x3b}}
	if l.gone && slices.Contains(l.did, "scan") {
		return &gpu.Snapshot{GPUs: []gpu.GPU{second}}
	}
	return &gpu.Snapshot{GPUs: []gpu.GPU{first, second}}
}

func (l *lab) Refresh(context.Context) error { l.note("scan"); return l.refreshErr }

func (l *lab) Acquire(holder gpu.Holder, keys []gpu.DeviceKey) error {
	if l.blocked != nil {
		return l.blocked
	}
	if len(l.holdings) > 0 && l.holdings[0].Holder != holder {
		return errors.New("held")
	}
	l.note(fmt.Sprint("acquire ", keys))
	l.holdings = []ledger.Holding{{Holding: gpu.Holding{Key: keys[0], Holder: holder}}}
	return nil
}

func (l *lab) Release(holder gpu.Holder, keys []gpu.DeviceKey) error {
	l.note(fmt.Sprint("release ", keys))
	l.holdings = slices.DeleteFunc(l.holdings, func(h ledger.Holding) bool { return h.Holder == holder })
	return l.releaseErr
}

func (l *lab) Holdings() []ledger.Holding { return slices.Clone(l.holdings) }

// heldBy adds a holder of GPU 0.
func heldBy(holder gpu.Holder) func(*lab) {
	return func(l *lab) {
		l.holdings = []ledger.Holding{{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-aa11"}, Holder: holder}}}
	}
}

func TestResetSteps(t *testing.T) {
	dcgm := []openers.Opener{{PID: 7, Program: "dcgm-exporter", Stop: "stop DCGM"}}
	whole := []string{"acquire [GPU-aa11]", "quiesce GPU-aa11", "reset GPU-aa11", "scan", "resume GPU-aa11", "release [GPU-aa11]"}
	for name, test := range map[string]struct {
		reference string
		wait      time.Duration
		prepare   func(l *lab)
		err       string
		did       []string
		reported  string
	}{
		"free":      {reference: "0", did: whole, reported: "advertised again"},
		"by UUID":   {reference: "GPU-aa11", did: whole},
		"by bus ID": {reference: "0000:1b:00.0", did: whole},
		"partitioned": {reference: "0", prepare: func(l *lab) { l.mig = make([]gpu.MIGDevice, 2) }, did: whole,
			reported: "has 2 MIG devices; the reset destroys them"},
		"no such GPU": {reference: "7", err: `this node has no GPU "7"; it has 2 GPUs (berth gpus --node-local lists them)`},
		"two GPUs":    {reference: "GPU-aa", err: `2 GPUs of this node begin with "GPU-aa"; write more of the UUID`},
		"held by a pod": {reference: "0", prepare: heldBy(gpu.Holder{Kind: gpu.HolderPod, Namespace: "ml", Name: "train", PodUID: "u"}),
			err: "GPU 0 (GPU-aa11) is in use: held by ml/train (fix: delete the pods that hold it, or wait until they end with --wait)"},
		"held by a pod without name": {reference: "0", prepare: heldBy(gpu.Holder{Kind: gpu.HolderPod, PodUID: "u"}),
			err: "held by pod u"},
		"held by a pod without UID": {reference: "0", prepare: heldBy(gpu.Holder{Kind: gpu.HolderPod}),
			err: "held by a pod that is being admitted"},
		"held by a claim": {reference: "0", prepare: heldBy(gpu.Holder{Kind: gpu.HolderClaim, ID: "c"}),
			err: "held by ResourceClaim c"},
		"held by another maintenance": {reference: "0", prepare: heldBy(gpu.Holder{Kind: gpu.HolderMaintenance,
			ID: "mig"}), err: "held by maintenance (mig)"},
		"refused without a holder": {reference: "0",
			prepare: func(l *lab) { l.blocked = errors.New("read-only") }, err: "take the GPU out of service: read-only"},
		"opened": {reference: "0", prepare: func(l *lab) { l.users = [][]openers.Opener{dcgm} },
			err: "GPU 0 (GPU-aa11) is in use: process 7 (dcgm-exporter) has it open (fix: stop DCGM, or wait until they end with --wait)",
			did: []string{"acquire [GPU-aa11]", "release [GPU-aa11]"}},
		"openers not known": {reference: "0", prepare: func(l *lab) { l.openersErr = errors.New("no answer") }, err: "no answer",
			did: []string{"acquire [GPU-aa11]", "release [GPU-aa11]"}},
		"openers not known, release fails": {reference: "0", prepare: func(l *lab) {
			l.openersErr,
				l.releaseErr = errors.New("no answer"), errors.New("disk full")
		},
			err: "no answer\ndisk full"},
		"open, and waited for": {reference: "0", wait: time.Minute, prepare: func(l *lab) { l.users = [][]openers.Opener{dcgm, dcgm} },
			did:      append([]string{"acquire [GPU-aa11]", "release [GPU-aa11]", "acquire [GPU-aa11]", "release [GPU-aa11]"}, whole...),
			reported: "process 7 (dcgm-exporter) has it open; waiting"},
		"open for too long": {reference: "0", wait: 2 * time.Second,
			prepare: func(l *lab) { l.users = slices.Repeat([][]openers.Opener{dcgm}, 9) },
			err:     "is in use: process 7"},
		"daemon does not end": {reference: "0", prepare: func(l *lab) { l.quiesceErr = errors.New("it still runs") }, err: "it still runs",
			did: []string{"acquire [GPU-aa11]", "quiesce GPU-aa11", "resume GPU-aa11", "release [GPU-aa11]"}},
		"refused": {reference: "0", prepare: func(l *lab) { l.resetErr = errors.New("nvidia-smi refused") }, err: "nvidia-smi refused",
			did: []string{"acquire [GPU-aa11]", "quiesce GPU-aa11", "reset GPU-aa11", "resume GPU-aa11", "release [GPU-aa11]"}},
		"not scanned": {reference: "0", prepare: func(l *lab) { l.refreshErr = errors.New("no scan") }, did: whole, err: "no scan"},
		"gone after it": {reference: "0", prepare: func(l *lab) { l.gone = true }, did: whole,
			err: "the scan after that does not find it (fix: reboot the node)"},
		"release failed": {reference: "0", prepare: func(l *lab) { l.releaseErr = errors.New("disk full") }, did: whole,
			reported: "could not end the maintenance of GPU 0 (GPU-aa11): disk full"},
		"without effect": {reference: "0", prepare: func(l *lab) {
			l.health = gpu.Health{State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "ROW_REMAP_FAILURE",
				Message: "no rows", Since: time.Unix(1, 0)}}}
		}, did: whole, err: "GPU 0 (GPU-aa11): it was reset and is still Unhealthy: ROW_REMAP_FAILURE: no rows"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				if test.prepare != nil {
					test.prepare(l)
				}
				var reported []string
				_, err := l.reset(t.Context(), test.reference, test.wait, func(m string) { reported = append(reported, m) })
				if text := fmt.Sprint(err); (err != nil) != (test.err != "") || !strings.Contains(text, test.err) {
					t.Errorf("error %v; want %q", err, test.err)
				}
				if diff := cmp.Diff(test.did, l.did); test.did != nil && diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if !strings.Contains(strings.Join(reported, "\n"), test.reported) {
					t.Errorf("reported %q; want %q in it", reported, test.reported)
				}
				if len(l.holdings) > 0 && l.holdings[0].Holder == holder() {
					t.Error("the GPU stays under maintenance")
				}
			})
		})
	}
}

// TestClientGoesAway checks that the end of the request ends the wait, and does not interrupt a reset that has begun.
func TestClientGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ctx, cancel := context.WithCancel(t.Context())
		l.users = slices.Repeat([][]openers.Opener{{{PID: 7}}}, 100)
		time.AfterFunc(3*time.Second, cancel)
		if _, err := l.reset(ctx, "0", time.Minute, func(string) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("while it waits: %v, want the end of the request", err)
		}
		l.users = nil
		if result, err := l.reset(ctx, "0", 0, func(string) {}); err != nil || result.State != string(gpu.Healthy) {
			t.Errorf("once the GPU is free: %+v, %v; want a complete reset", result, err)
		}
	})
}

// TestRunEndsAnInterruptedReset checks that the next agent releases the holding that an interrupted reset has left in
// the ledger, but not while another agent resets.
func TestRunEndsAnInterruptedReset(t *testing.T) {
	l := newLab(t)
	heldBy(holder())(l)
	unlock, err := l.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.reset(t.Context(), "1", 0, func(string) {}); !errors.Is(err, errResetting) {
		t.Errorf("a second reset: %v; want %v", err, errResetting)
	}
	if err := l.Run(t.Context()); err != nil || len(l.holdings) == 0 {
		t.Errorf("while another agent resets: %v, %v", err, l.holdings)
	}
	unlock()
	if err := l.Run(t.Context()); err != nil || len(l.holdings) > 0 {
		t.Errorf("after it: %v, %v", err, l.holdings)
	}
}

// TestRunWithoutLock checks that an unusable state directory only prevents the reset.
func TestRunWithoutLock(t *testing.T) {
	l := newLab(t)
	if err := os.Remove(l.deps.Dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(t.Context()); err != nil || !l.ready.Is() {
		t.Errorf("Run: %v, ready: %v", err, l.ready.Is())
	}
	if _, err := l.reset(t.Context(), "0", 0, func(string) {}); err == nil || !strings.Contains(err.Error(), "lock resets") {
		t.Errorf("reset: %v", err)
	}
}

func TestServeHTTP(t *testing.T) {
	l := newLab(t)
	post := func(query string) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		l.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/reset?"+query, http.NoBody))
		return recorder
	}
	if got := post("gpu=0"); got.Code != http.StatusServiceUnavailable || len(l.did) > 0 {
		t.Errorf("before Run: %d %s", got.Code, got.Body)
	}
	if err := l.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{"": "no GPU named", "gpu=0&wait=x": `wait "x"`,
		"gpu=0&wait=25h": `wait "25h"`, "gpu=0&wait=-1s": `wait "-1s"`} {
		if got := post(query); got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), want) {
			t.Errorf("%q: %d %s, want %q", query, got.Code, got.Body, want)
		}
	}
	for query, wantErr := range map[string]string{"gpu=0&wait=1m": "", "gpu=9": "no GPU"} {
		var steps int
		var result *v1alpha1.GPUReset
		for lines := json.NewDecoder(post(query).Body); lines.More(); {
			var line v1alpha1.GPUResetLine
			if err := lines.Decode(&line); err != nil {
				t.Fatal(err)
			}
			if line.Step != nil {
				steps++
			}
			result = line.Result
		}
		switch {
		case result == nil || result.Done != (wantErr == "") || len(result.Steps) != steps || !strings.Contains(result.Error, wantErr):
			t.Errorf("%s: %+v after %d steps", query, result, steps)
		case result.Done && (result.UUID != "GPU-aa11" || steps != 3):
			t.Errorf("%s: %+v after %d steps", query, result, steps)
		}
	}
}
