package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/podwatch"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// world is what a Syncer sees, and what it does.
type world struct {
	dir     string
	changed signal.Broadcast

	mu       sync.Mutex
	settings v1alpha1.Gate
	in       Inputs
	holdings []gpu.Holding
	pods     []podwatch.Validation
	// living are the pods that the watch knows, and ended those that it knows to have ended; synced is false while it has none.
	living map[string]bool
	ended  map[string]bool
	synced bool
	// away is true while the API server cannot be reached.
	away bool
	// log has each change of the taint and of the condition.
	log      []string
	taint    nodeapi.GateTaint
	ready    nodeapi.NodeCondition
	problems []gpu.Cause
	lost     int
}

func newWorld(t *testing.T) *world {
	return &world{
		dir: t.TempDir(), settings: completeSettings(v1alpha1.Gate{}), synced: true, living: map[string]bool{}, ended: map[string]bool{},
		in: Inputs{
			BootID: "boot", OnBus: 1, Vendor: gpu.NVIDIA, Advertised: 1, Spec: &Spec{Fingerprint: "f"},
			Snapshot: &gpu.Snapshot{
				Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580"}}}, GPUs: []gpu.GPU{{UUID: "GPU-0", Vendor: gpu.NVIDIA}},
			},
		},
	}
}

func (w *world) open() *Syncer {
	return Open(Deps{
		Settings: func() v1alpha1.Gate { w.mu.Lock(); defer w.mu.Unlock(); return w.settings },
		Observe:  func() Inputs { w.mu.Lock(); defer w.mu.Unlock(); return w.in },
		Holdings: func() []gpu.Holding { w.mu.Lock(); defer w.mu.Unlock(); return slices.Clone(w.holdings) },
		Pods:     w, Changed: []func() *signal.Subscription{w.changed.Subscribe}, StateDir: w.dir, BootID: "boot", Node: w, Files: func(gate.State) error { return nil },
		Report: func(source string, problems ...gpu.Cause) {
			if source == "gate" {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.problems = problems
			}
		},
		FileLost: func(string, statefile.Result, string) { w.lost++ }, Clock: clock.RealClock{},
	})
}

// start runs a Syncer until stop is called, as an agent does: awaitRegistration comes first.
func (w *world) start(t *testing.T) (s *Syncer, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	s = w.open()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Before(func() { w.note("advertised") })(ctx)
		if ctx.Err() == nil {
			_ = s.Run(ctx)
		}
	}()
	settled()
	return s, func() { cancel(); <-done }
}

// settled waits until everything that was signalled is done.
func settled() { time.Sleep(100 * time.Millisecond); synctest.Wait() }

func (w *world) note(text string) { w.mu.Lock(); defer w.mu.Unlock(); w.log = append(w.log, text) }

// change changes what the Syncer sees, and signals it.
func (w *world) change(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	w.changed.Set()
	settled()
}

func (w *world) SetReady(c nodeapi.NodeCondition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c != w.ready {
		w.log = append(w.log, fmt.Sprintf("ready %t %s", c.OK, c.Reason))
	}
	w.ready = c
}

func (w *world) SetGateTaint(taint nodeapi.GateTaint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if taint != w.taint {
		w.log = append(w.log, fmt.Sprintf("taint %s %t", taint.Key, taint.Wanted))
	}
	w.taint = taint
}

func (w *world) GateTaintWritten() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.away
}

func (w *world) AwaitGateTaint(ctx context.Context, taint nodeapi.GateTaint) error {
	for {
		w.mu.Lock()
		away := w.away
		w.mu.Unlock()
		if !away {
			w.SetGateTaint(taint)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func (w *world) Pod(uid string) (podwatch.Pod, podwatch.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.living[uid] {
		return podwatch.Pod{UID: uid}, podwatch.Living
	}
	if w.ended[uid] {
		return podwatch.Pod{UID: uid}, podwatch.Ended
	}
	return podwatch.Pod{UID: uid}, podwatch.Unknown
}

// Resolve knows which pods have ended only while the API server can be reached.
func (w *world) Resolve(_ context.Context, uids []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return errors.New("no route")
	}
	for _, uid := range uids {
		if uid != "" && !w.living[uid] {
			w.ended[uid] = true
		}
	}
	return nil
}

func (w *world) Validations() ([]podwatch.Validation, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.pods), w.synced
}

func (w *world) key() string { return gate.Key("boot", "580", w.in.Spec.Fingerprint) }

// hold makes a pod hold the GPU; validate makes it a validation pod.
func (w *world) hold(uid string) {
	w.holdings = []gpu.Holding{{Key: gpu.DeviceKey{GPU: "GPU-0"}, Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: uid}}}
}

func (w *world) validate(uid, result string) {
	v := podwatch.Validation{UID: uid, Name: "berth-validate-n", Key: w.key(), Of: 1}
	if result != "" {
		v.Ended, v.Containers = true, []podwatch.Result{{Name: "c", Message: result}}
		if strings.Contains(result, "VALIDATE") {
			v.Containers[0].Exit = 1
		}
	}
	w.pods, w.living[uid] = []podwatch.Validation{v}, true
}

const (
	passed             = `{"apiVersion":"validation.berth.dev/v1","kind":"ValidationResult","passed":true}`
	failed             = `{"apiVersion":"validation.berth.dev/v1","kind":"ValidationResult","passed":false,"code":"VALIDATE_CUDA_INIT","evidence":"cuInit: 999"}`
	tainted, untainted = "taint berth.dev/not-validated true", "taint berth.dev/not-validated false"
)

func (w *world) want(t *testing.T, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.log); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	w.log = nil
}

// TestValidation follows a node from its first agent to the end of its validation, with the pod that holds its devices.
func TestValidation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s, stop := w.start(t)
		w.want(t, tainted, "advertised", "ready false Held")
		w.change(func() { w.validate("v", ""); w.hold("v") })
		w.want(t)
		w.change(func() { w.validate("v", failed) })
		w.want(t, "ready false VALIDATE_CUDA_INIT")
		if len(w.problems) != 1 || w.problems[0].Message != "c: cuInit: 999" || s.Status().Code != "VALIDATE_CUDA_INIT" {
			t.Errorf("problems %v, status %+v", w.problems, s.Status())
		}
		// The pod leaves the API server before it leaves the ledger.
		w.change(func() { w.pods, w.living = nil, map[string]bool{} })
		w.change(func() { w.holdings = nil })
		w.want(t)
		w.change(func() { w.validate("v2", ""); w.hold("v2") })
		w.change(func() { w.validate("v2", passed) })
		w.want(t, untainted, "ready true Validated")
		if status := s.Status(); status.By != v1alpha1.GateByPod || len(w.problems) != 0 {
			t.Errorf("problems %v, status %+v", w.problems, status)
		}
		w.change(func() { w.pods, w.holdings = nil, nil })
		w.want(t)
		stop()
		// The next agent of the boot, before it has read the spec.
		w.in.Spec = nil
		_, stop = w.start(t)
		w.want(t, "advertised")
		w.change(func() { w.in.Spec = &Spec{Fingerprint: "f"} })
		w.want(t)
		// Another driver's files.
		w.change(func() { w.in.Spec = &Spec{Fingerprint: "g"} })
		w.want(t, tainted, "ready false Held")
		stop()
	})
}

// TestInUse: a node that was in use first is never tainted, whatever the agent can and cannot know about the holders.
func TestInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hold("work")
		w.living["work"] = true
		_, stop := w.start(t)
		w.want(t, "advertised", untainted, "ready true Validated")
		w.change(func() { w.in.Runtime = &gate.Stop{Code: "RUNTIME_CDI_OFF", Message: "off"} })
		w.want(t, "ready false RUNTIME_CDI_OFF")
		w.change(func() { w.in.Runtime = nil; w.living = map[string]bool{} })
		w.change(func() { w.hold("") }) // A further pod has got the device, and is not known yet.
		w.want(t, "ready true Validated")
		w.change(func() { w.in.Spec = &Spec{Fingerprint: "other"} })
		w.want(t)
		w.change(func() { w.holdings = nil })
		w.want(t)
		stop()
		// After the loss of the file, with an API server that is away: the holder is not known.
		if err := Remove(w.dir); err != nil {
			t.Fatal(err)
		}
		w.synced, w.away = false, true
		w.hold("old")
		_, stop = w.start(t)
		w.want(t)
		time.Sleep(podsWithin)
		synctest.Wait()
		w.want(t, "advertised")
		stop()
	})
}

// TestTolerantPod: a pod that got a GPU although the node is tainted opens nothing, also for the next agent, and after a validation has
// failed.
func TestTolerantPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.living["ds"] = true
		_, stop := w.start(t)
		w.want(t, tainted, "advertised", "ready false Held")
		w.change(func() { w.hold("ds") })
		w.want(t, "ready false GATE_HELD_BY_POD")
		time.Sleep(time.Hour)
		synctest.Wait()
		w.want(t)
		stop()
		_, stop = w.start(t)
		w.want(t, "advertised")
		w.change(func() { w.holdings = nil })
		w.want(t, "ready false Held")
		w.change(func() { w.validate("v", failed) })
		w.change(func() { w.hold("ds") })
		w.want(t, "ready false VALIDATE_CUDA_INIT")
		// With another driver the one that failed is not forgotten.
		w.change(func() { w.in.Spec = &Spec{Fingerprint: "other"} })
		w.want(t, "ready false GATE_HELD_BY_POD")
		w.change(func() { w.holdings = nil })
		w.change(func() { w.validate("v2", passed) })
		w.want(t, "ready false Held", untainted, "ready true Validated")
		stop()
	})
}

// TestPodBeforeTaint: a pod that gets a GPU while the taint cannot be written has not tolerated it, and the node is in use.
func TestPodBeforeTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.validate("v", passed)
		_, stop := w.start(t)
		w.change(func() { w.pods = nil })
		w.log = nil
		w.change(func() { w.away, w.in.Spec = true, &Spec{Fingerprint: "other"} })
		w.want(t, tainted, "ready false Held")
		time.Sleep(time.Minute)
		w.change(func() { w.hold("work"); w.living["work"] = true })
		w.want(t, untainted, "ready true Validated")
		// Once the Node has the taint a pod opens nothing.
		w.change(func() { w.holdings = nil })
		w.change(func() { w.in.Spec = &Spec{Fingerprint: "third"} })
		w.change(func() { w.away = false })
		time.Sleep(waitingTick)
		w.change(func() { w.hold("work") })
		w.want(t, tainted, "ready false Held", "ready false GATE_HELD_BY_POD")
		stop()
	})
}

// TestTolerantPodAtStart: an agent ends while it waits for the taint, and a pod that tolerates it has a GPU when the next agent starts.
func TestTolerantPodAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.living["ds"], w.away = true, true
		_, stop := w.start(t)
		w.want(t)
		stop()
		w.hold("ds")
		w.away, w.log = false, nil
		_, stop = w.start(t)
		w.want(t, tainted, "advertised", "ready false GATE_HELD_BY_POD")
		stop()
	})
}

// TestEndedHolder: a pod that has ended, and is in the ledger still, does not keep the taint away from the node; the validation pod of the
// agent before is one.
func TestEndedHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hold("gone")
		_, stop := w.start(t)
		w.want(t, tainted, "advertised", "ready false Held")
		stop()
	})
}

// TestClaims: a claim is a user like a pod, and that of the validation pods is none.
func TestClaims(t *testing.T) {
	claim := func(uids ...string) func(w *world) {
		return func(w *world) {
			h := gpu.Holding{Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "c"}}
			for _, uid := range uids {
				h.Pods = append(h.Pods, gpu.Pod{UID: uid})
			}
			w.holdings = append(w.holdings, h)
			w.living["work"] = true
		}
	}
	tests := map[string]struct {
		holdings []func(*world)
		want     bool
	}{
		"none":            {nil, false},
		"of work":         {[]func(*world){claim("work")}, true},
		"of a validation": {[]func(*world){claim("v")}, false},
		"of both":         {[]func(*world){claim("v", "work")}, true},
		"without a pod":   {[]func(*world){claim()}, true},
		"maintenance": {[]func(*world){func(w *world) {
			w.holdings = append(w.holdings, gpu.Holding{Holder: gpu.Holder{Kind: gpu.HolderMaintenance, ID: "m"}})
		}}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.validate("v", "")
			for _, add := range tc.holdings {
				add(w)
			}
			u := users{pods: w}
			if got := u.inUse(w.holdings); got != tc.want {
				t.Errorf("inUse = %t, want %t", got, tc.want)
			}
		})
	}
}

// TestAPIAway: without the API server nothing is advertised before the taint is there.
func TestAPIAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.away = true
		_, stop := w.start(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		w.want(t)
		w.change(func() { w.away = false })
		time.Sleep(time.Second)
		settled()
		w.want(t, tainted, "advertised", "ready false Held")
		stop()
	})
}

// TestRefusedTaint: an agent that waits for the taint follows a change of the settings, after which the API server refuses it.
func TestRefusedTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.away = true
		_, stop := w.start(t)
		time.Sleep(time.Minute)
		w.change(func() { w.settings.Mode = v1alpha1.GateReport })
		time.Sleep(taintWithin)
		settled()
		w.want(t, "advertised", untainted, "ready false Held")
		stop()
	})
}

// TestTimeout: the time without an operator goes on in the next agent, and a pod ends it.
func TestTimeout(t *testing.T) {
	for name, opens := range map[string]bool{"hold": false, "open": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if opens {
					w.settings.OnTimeout = v1alpha1.GateOpen
				}
				_, stop := w.start(t)
				time.Sleep(5 * time.Minute)
				stop()
				_, stop = w.start(t)
				w.want(t, tainted, "advertised", "ready false Held", "advertised")
				time.Sleep(5*time.Minute + waitingTick)
				synctest.Wait()
				if opens {
					w.want(t, untainted, "ready true Validated")
					w.change(func() { w.validate("v", failed) })
					w.want(t, tainted, "ready false VALIDATE_CUDA_INIT")
				} else {
					w.want(t, "ready false GATE_NO_OPERATOR")
					w.change(func() { w.validate("v", "") })
					w.want(t, "ready false Held")
				}
				stop()
			})
		})
	}
}

// TestSettings: a change of the settings takes effect without a restart.
func TestSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s, stop := w.start(t)
		w.want(t, tainted, "advertised", "ready false Held")
		w.change(func() { w.settings.TaintKey = "example.com/wait" })
		w.want(t, "taint example.com/wait true")
		w.change(func() { w.settings.Mode = v1alpha1.GateReport })
		w.want(t, "taint example.com/wait false")
		w.change(func() { w.settings.Mode = v1alpha1.GateDisabled })
		w.want(t, "ready false ")
		if s.Status() != nil {
			t.Errorf("status %+v of a gate that is off", s.Status())
		}
		stop()
	})
}

// TestDecided: a status of nil counts from the first decision on, also where the gate is off.
func TestDecided(t *testing.T) {
	for mode, status := range map[v1alpha1.GateMode]bool{v1alpha1.GateEnforce: true, v1alpha1.GateDisabled: false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.settings.Mode = mode
			s := w.open()
			select {
			case <-s.Decided():
				t.Error("it has decided before it runs")
			default:
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			<-s.Decided()
			if got := s.Status() != nil; got != status {
				t.Errorf("%s: a status: %v, want %v", mode, got, status)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAtRest: a node at which nothing changes writes no file, and looks at most every 30 s.
func TestAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.validate("v", passed)
		s, stop := w.start(t)
		before, err := os.Stat(filepath.Join(w.dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		changes := s.Subscribe()
		defer changes.Close()
		<-changes.C()
		w.log = nil
		time.Sleep(time.Hour)
		synctest.Wait()
		after, err := os.Stat(filepath.Join(w.dir, fileName))
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("the file was written: %v", err)
		}
		w.want(t)
		select {
		case <-changes.C():
			t.Error("the status was signalled")
		default:
		}
		stop()
	})
}

// TestUnwritableFile: what could not be written is written later, although nothing has changed since.
func TestUnwritableFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.dir = filepath.Join(w.dir, "state")
		if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.validate("v", passed)
		_, stop := w.start(t)
		if err := os.Remove(w.dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(validatedTick)
		settled()
		if kept, result := w.open().file.Read(); result.State != statefile.Present || kept.State != gate.Validated {
			t.Errorf("on disk: %+v, %+v", kept, result)
		}
		stop()
	})
}

func TestDamagedFile(t *testing.T) {
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.dir, fileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w.open(); w.lost != 1 {
		t.Errorf("reported %d lost files, want 1", w.lost)
	}
}
