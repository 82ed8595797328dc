package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

var errWaiting = errors.New("not serving")

// world is the helper library and the API server of a test.
type world struct {
	mu      sync.Mutex
	devices int
	changed signal.Broadcast
	// published are the times of the calls.
	published []time.Duration
	last      resourceslice.Pool
	refuse    error
	check     error
	// slow is how long a check takes.
	slow     time.Duration
	compute  error
	problems []gpu.Cause
	began    time.Time
	*Publisher
}

func (w *world) set(edit func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	edit()
}

func (w *world) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published = append(w.published, time.Since(w.began))
	if w.refuse == nil {
		w.last = resources.Pools["node-a"]
	}
	return w.refuse
}

// slices has one slice of n devices; each has a taint while the API server has taints.
func (w *world) slices(disabled []string) (resourceslice.Pool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var devices []resourceapi.Device
	for i := range w.devices {
		device := resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i)}
		if !slices.Contains(disabled, "DRADeviceTaints") {
			device.Taints = []resourceapi.DeviceTaint{{Key: "gpu.berth.dev/health", Effect: resourceapi.DeviceTaintEffectNone}}
		}
		devices = append(devices, device)
	}
	return resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}, w.compute
}

// start runs a Publisher in the bubble of the test.
func start(t *testing.T, w *world) {
	t.Helper()
	w.began = time.Now()
	w.Publisher = New(Deps{
		Pool: "node-a", Slices: w.slices, Changed: w.changed.Subscribe, Target: w,
		Waiting: func(err error) bool { return errors.Is(err, errWaiting) },
		Check: func(context.Context, resourceslice.Pool) error {
			w.mu.Lock()
			slow, err := w.slow, w.check
			w.mu.Unlock()
			time.Sleep(slow)
			return err
		},
		Report: func(source string, problems ...gpu.Cause) {
			if source != Source {
				t.Errorf("source %s", source)
			}
			w.set(func() { w.problems = problems })
		},
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
}

func (w *world) codes() (codes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.problems {
		codes = append(codes, p.Code)
	}
	return codes
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.published)
}

// TestPublish: at the start, at once after a change and a registration, and then less and less often, because the kubelet may delete the
// slices later; nothing without an event.
func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{devices: 1}
		start(t, w)
		time.Sleep(10 * time.Minute)
		settled := w.count()
		if settled < 5 || settled > 20 || w.published[0] != 0 {
			t.Errorf("published at %v", w.published)
		}
		if !w.Published().After(w.began) && !w.Published().Equal(w.began) {
			t.Errorf("seen at %s", w.Published())
		}
		time.Sleep(time.Hour)
		if w.count() != settled {
			t.Errorf("published %d times without a reason", w.count()-settled)
		}
		now := time.Since(w.began)
		w.set(func() { w.devices = 2 })
		w.changed.Set()
		synctest.Wait()
		if w.count() != settled+1 || w.published[settled] != now || len(w.last.Slices[0].Devices) != 2 {
			t.Errorf("published at %v", w.published[settled:])
		}
		w.Registered()
		time.Sleep(time.Second)
		within := w.count() - settled - 1
		if within < 4 || w.published[settled+1] != now {
			t.Errorf("published %d times within 1 s of the registration: %v", within, w.published[settled+1:])
		}
		if len(w.codes()) != 0 {
			t.Errorf("%v", w.codes())
		}
	})
}

// TestPublishFails: the attempts are repeated with growing distances of at most 30 s, and the problem stays until the API server has
// the slices.
func TestPublishFails(t *testing.T) {
	for name, fail := range map[string]func(*world, error){
		"by the library":     func(w *world, err error) { w.refuse = err },
		"in the background":  func(w *world, err error) { w.check = err },
		"to compute":         func(w *world, err error) { w.compute = err },
		"and says so itself": func(w *world, err error) { w.check = err; w.Failed(err) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{devices: 1}
				start(t, w)
				time.Sleep(10 * time.Minute)
				before := w.count()
				fail(w, errors.New("503"))
				w.changed.Set()
				time.Sleep(10 * time.Minute)
				if !slices.Equal(w.codes(), []string{"DRA_PUBLISH_FAILED"}) || !strings.Contains(w.problems[0].Message, "503") {
					t.Errorf("%v", w.problems)
				}
				if n := w.count() - before; name != "to compute" && (n < 15 || n > 30) {
					t.Errorf("%d attempts in 10 min", n)
				}
				w.set(func() { w.refuse, w.check, w.compute = nil, nil, nil })
				time.Sleep(lastRetry)
				synctest.Wait() // A retry may be due now.
				if len(w.codes()) != 0 || time.Since(w.Published()) > lastRetry {
					t.Errorf("%v, seen %s ago", w.problems, time.Since(w.Published()))
				}
			})
		})
	}
}

// TestNotServing: before the driver serves there is nothing to do, and no problem.
func TestNotServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{devices: 1, refuse: errWaiting}
		start(t, w)
		time.Sleep(10 * time.Minute)
		if len(w.codes()) != 0 {
			t.Errorf("%v", w.problems)
		}
		w.set(func() { w.refuse = nil })
		w.Registered()
		synctest.Wait()
		if len(w.last.Slices) != 1 {
			t.Error("not published")
		}
	})
}

// TestDroppedFields: the features are remembered and reported, and the next slices do without them.
func TestDroppedFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{devices: 1}
		start(t, w)
		with, _ := w.slices(nil)
		without, _ := w.slices([]string{"DRADeviceTaints"})
		object := func(pool resourceslice.Pool) *resourceapi.ResourceSlice {
			return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: pool.Slices[0].Devices}}
		}
		for range 2 { // The second time it is known.
			before := w.count()
			w.Failed(fmt.Errorf("sync: %w", &resourceslice.DroppedFieldsError{PoolName: "node-a", DesiredSlice: object(with), ActualSlice: object(without)}))
			synctest.Wait()
			if n := w.count() - before; n > 1 {
				t.Errorf("published %d times", n)
			}
		}
		if diff := cmp.Diff(without, w.last); diff != "" {
			t.Error(diff)
		}
		if !slices.Equal(w.disabledFeatures(), []string{"DRADeviceTaints"}) || !slices.Equal(w.codes(), []string{"DRA_FEATURE_DISABLED"}) {
			t.Errorf("%v %v", w.disabledFeatures(), w.problems)
		}
		time.Sleep(time.Hour)
		if !slices.Equal(w.codes(), []string{"DRA_FEATURE_DISABLED"}) {
			t.Errorf("%v", w.problems)
		}
	})
}

// TestSlowCheck: a check that hangs delays no change, and its result for older slices is not used.
func TestSlowCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{devices: 1}
		start(t, w)
		time.Sleep(10 * time.Minute)
		w.set(func() { w.slow = 5 * time.Second })
		now := time.Since(w.began)
		for i := range 3 {
			w.set(func() { w.devices = 2 + i })
			w.changed.Set()
			synctest.Wait()
		}
		if got := w.published[len(w.published)-3:]; got[0] != now || got[2] != now {
			t.Errorf("published at %v, not at %s", got, now)
		}
		seen := w.Published()
		time.Sleep(6 * time.Second)
		if !w.Published().Equal(seen) {
			t.Error("a check of older slices counted")
		}
		time.Sleep(5 * time.Second)
		if w.Published().Equal(seen) {
			t.Error("the last slices were not checked")
		}
	})
}

func TestChecker(t *testing.T) {
	pool := func(n int) (p resourceslice.Pool) {
		for i := range n {
			p.Slices = append(p.Slices, resourceslice.Slice{Devices: []resourceapi.Device{{Name: "gpu-" + strconv.Itoa(i),
				Taints: []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}}})
		}
		return p
	}
	tests := map[string]struct {
		have int
		want int
		edit func(*resourceapi.ResourceSlice)
		err  string
	}{
		"equal":          {have: 2, want: 2},
		"time of taints": {have: 1, want: 1, edit: func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].Taints[0].TimeAdded = now() }},
		"none":           {have: 0, want: 1, err: "has 0 of 1"},
		"too many":       {have: 2, want: 1, err: "has 2 of 1"},
		"other content":  {have: 1, want: 1, edit: func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].Name = "gpu-9" }, err: "ResourceSlice 0 of pool node-a is not"},
		"old generation": {have: 2, want: 2, edit: func(s *resourceapi.ResourceSlice) {
			if s.Name == "slice-1" {
				s.Spec.Pool.Generation = 4
			}
		}, err: "has 1 of 2"},
		"other driver": {have: 1, want: 1, edit: func(s *resourceapi.ResourceSlice) { s.Spec.Driver = "nic.example.com" }, err: "has 0 of 1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := objects(pool(test.have), test.edit)
			err := Checker{Client: client, Driver: "gpu.berth.dev", Node: "node-a", Pool: "node-a", Read: unread}.Check(t.Context(), pool(test.want))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}

// unread is a Checker's Read without effect.
func unread() func([]resourceapi.ResourceSlice) { return func([]resourceapi.ResourceSlice) {} }
