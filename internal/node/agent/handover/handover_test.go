package handover

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// world is a node with a kubelet and slices, in memory.
type world struct {
	dir   string
	fault func(statefile.Step) error

	mu       sync.Mutex
	counted  []gpu.UUID
	down     error
	opened   int
	changed  int
	lost     int
	problems map[string][]gpu.Cause
}

func newWorld(t interface{ TempDir() string }) *world {
	return &world{dir: t.TempDir(), problems: map[string][]gpu.Cause{}}
}

func (w *world) Allocatable(context.Context) ([]kubelet.Devices, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for _, id := range w.counted {
		ids = append(ids, string(id))
	}
	return []kubelet.Devices{{Resource: "nvidia.com/gpu", IDs: ids}}, w.down
}

func (w *world) Current() *gpu.Snapshot {
	return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}}
}

func (w *world) count(ids ...gpu.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counted = ids
}

func (w *world) open(before ...offer.Unit) *Gate {
	return Open(Deps{
		Dir: w.dir, NodeUID: func() string { return "node" }, Before: before, Kubelet: w, Hardware: w,
		Opened: func() { w.opened++ }, Changed: func() { w.changed++ },
		FileLost: func(string, statefile.Result, string) { w.lost++ },
		Report: func(source string, problems ...gpu.Cause) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.problems[source] = problems
		},
		Fault: func(step statefile.Step) error {
			if w.fault != nil {
				return w.fault(step)
			}
			return nil
		},
		Clock: clock.RealClock{},
	})
}

func (w *world) codes(source string) (codes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, problem := range w.problems[source] {
		codes = append(codes, problem.Code)
	}
	return codes
}

// by returns the devices of the node; those of the GPUs in dra are allocated through DRA.
func by(dra ...gpu.UUID) (devices []offer.Placed) {
	for _, id := range []gpu.UUID{"GPU-a", "GPU-b", "GPU-c"} {
		one := offer.Placed{}
		one.Key, one.Use, one.Health = gpu.DeviceKey{GPU: id}, offer.Use{Resource: "nvidia.com/gpu"}, gpu.Healthy
		if slices.Contains(dra, id) {
			one.Use.API = offer.DRA
		}
		devices = append(devices, one)
	}
	return devices
}

// listed returns the GPUs of the device plugin's list.
func listed(offers []offer.Offer) (ids []gpu.UUID) {
	for _, o := range offers {
		for _, device := range o.Devices {
			ids = append(ids, device.Key.GPU)
		}
	}
	return ids
}

func allowed(g *Gate, wanted ...gpu.UUID) (ids []gpu.UUID) {
	all := g.Publish(wanted)
	for _, id := range wanted {
		if all[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

func want(t *testing.T, what string, got []gpu.UUID, want ...gpu.UUID) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestToDRA: a GPU is published when the device plugin does not list it and the kubelet does not count it, not before.
func TestToDRA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := w.open()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = g.Run(ctx) }()
		want(t, "the list", listed(g.Advertise(by())), "GPU-a", "GPU-b", "GPU-c")
		w.count("GPU-a", "GPU-b", "GPU-c")
		want(t, "published while all are listed", allowed(g, "GPU-a"))
		time.Sleep(time.Second)
		want(t, "published while it is listed", allowed(g, "GPU-a"))
		g.Advertise(by("GPU-a"))
		time.Sleep(5 * time.Second)
		want(t, "published while the kubelet counts it", allowed(g, "GPU-a"))
		if got := w.codes(source); got != nil {
			t.Errorf("after 5 s the problems are %v", got)
		}
		time.Sleep(20 * time.Second)
		if got := w.codes(source); !slices.Equal(got, []string{"DRA_GPU_COUNTED"}) {
			t.Errorf("after 25 s the problems are %v", got)
		}
		w.count("GPU-b", "GPU-c")
		w.mu.Lock()
		w.down = errors.New("no response")
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		want(t, "published while the kubelet does not respond", allowed(g, "GPU-a"))
		w.mu.Lock()
		w.down = nil
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if w.changed == 0 {
			t.Error("the publisher was not woken")
		}
		want(t, "published", allowed(g, "GPU-a"), "GPU-a")
		want(t, "the list", listed(g.Advertise(by())), "GPU-b", "GPU-c")
		time.Sleep(10 * time.Second)
		if got := w.codes(source); got != nil {
			t.Errorf("at the end the problems are %v", got)
		}
	})
}

// TestToDevicePlugin: a GPU is listed when the slices were read without it, while none was written.
func TestToDevicePlugin(t *testing.T) {
	w := newWorld(t)
	g := w.open(offer.Unit{Key: gpu.DeviceKey{GPU: "GPU-a"}, Use: offer.Use{API: offer.DRA}})
	want(t, "published", allowed(g, "GPU-a"), "GPU-a")
	end, err := g.Write([]gpu.UUID{"GPU-a"})
	if err != nil {
		t.Fatal(err)
	}
	allowed(g) // It goes back.
	seen := g.Read()
	seen(nil)
	want(t, "listed while it is written", listed(g.Advertise(by())), "GPU-b", "GPU-c")
	seen = g.Read()
	end()
	seen(nil)
	want(t, "listed although a write ended after the reading began", listed(g.Advertise(by())), "GPU-b", "GPU-c")
	seen = g.Read()
	if end, err = g.Write([]gpu.UUID{"GPU-a"}); err != nil {
		t.Fatal(err)
	}
	end()
	seen(nil)
	want(t, "listed although it was written after the reading began", listed(g.Advertise(by())), "GPU-b", "GPU-c")
	g.Read()([]gpu.UUID{"GPU-a"})
	want(t, "listed while a slice has it", listed(g.Advertise(by())), "GPU-b", "GPU-c")
	opened := w.opened
	g.Read()(nil)
	if w.opened == opened {
		t.Error("the device plugin was not woken")
	}
	want(t, "the list", listed(g.Advertise(by())), "GPU-a", "GPU-b", "GPU-c")
	if _, err := g.Write([]gpu.UUID{"GPU-a"}); err == nil {
		t.Error("an outdated slice with the GPU may be written")
	}
}

// TestWatch: what the kubelet counts is known within 5 s while a slice may have a GPU, however the GPU got into it.
func TestWatch(t *testing.T) {
	for how, publish := range map[string]func(*testing.T, *Gate){
		"published after the kubelet was asked": func(t *testing.T, g *Gate) {
			allowed(g, "GPU-a")
			time.Sleep(time.Minute)
			want(t, "published", allowed(g, "GPU-a"), "GPU-a")
		},
		"read in a slice": func(_ *testing.T, g *Gate) {
			time.Sleep(time.Minute)
			g.Read()([]gpu.UUID{"GPU-a"})
		},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g := w.open()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = g.Run(ctx) }()
				publish(t, g)
				time.Sleep(time.Minute)
				for _, ids := range [][]gpu.UUID{{"GPU-b"}, {"GPU-a", "GPU-b"}, nil} {
					before := w.changed
					w.count(ids...)
					time.Sleep(watchEvery)
					synctest.Wait()
					gpus, resources := g.Counted()
					if got := slices.Sorted(maps.Keys(gpus)); !slices.Equal(got, ids) || resources["nvidia.com/gpu"] != (len(ids) > 0) || w.changed != before+1 {
						t.Errorf("the kubelet counts %v, and %v of %v are known; %d changes", ids, got, resources, w.changed-before)
					}
				}
			})
		})
	}
}

// TestStart: at a start the file, or the use before, says which GPUs slices may have; the others are listed at once. A GPU that a slice
// has without that is taken out of the list, and a damaged file withholds all GPUs until the slices were read.
func TestStart(t *testing.T) {
	w := newWorld(t)
	w.open(offer.Unit{Key: gpu.DeviceKey{GPU: "GPU-a"}, Use: offer.Use{API: offer.DRA}}, offer.Unit{Key: gpu.DeviceKey{GPU: "GPU-b"}})
	g := w.open()
	want(t, "the list of the second agent", listed(g.Advertise(by())), "GPU-b", "GPU-c")
	g.Read()([]gpu.UUID{"GPU-b"})
	want(t, "the list when a slice has another one", listed(g.Advertise(by())), "GPU-a", "GPU-c")
	want(t, "the list of the third agent", listed(w.open().Advertise(by())), "GPU-a", "GPU-c")
	if err := statefileDamage(g); err != nil {
		t.Fatal(err)
	}
	g = w.open()
	want(t, "the list with a damaged file", listed(g.Advertise(by())))
	if w.lost != 1 {
		t.Errorf("the file was reported as lost %d times", w.lost)
	}
	g.Read()([]gpu.UUID{"GPU-c"})
	want(t, "the list when the slices were read", listed(g.Advertise(by())), "GPU-a", "GPU-b")
	var none *Gate
	want(t, "the list without an API server", listed(none.Advertise(by("GPU-a"))), "GPU-b", "GPU-c")
}

// TestUnwritable: what could not be written is written at a later read of the slices.
func TestUnwritable(t *testing.T) {
	w := newWorld(t)
	g := w.open()
	w.fault = func(statefile.Step) error { return errors.New("no space left on device") }
	g.Read()([]gpu.UUID{"GPU-b"})
	w.fault = nil
	want(t, "the list of the next agent", listed(w.open().Advertise(by())), "GPU-a", "GPU-b", "GPU-c")
	g.Read()([]gpu.UUID{"GPU-b"})
	want(t, "the list of the next agent", listed(w.open().Advertise(by())), "GPU-a", "GPU-c")
}

func statefileDamage(g *Gate) error {
	return g.file().Write([]byte("{"))
}

// TestKilledWhileSaving: whichever step of the file's write is the last, a GPU that may be published is in the file, and one whose file
// could not be written is neither published nor withheld.
func TestKilledWhileSaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := 0
		for at := 0; ; at++ {
			w := newWorld(t)
			g := w.open()
			g.Advertise(by("GPU-a"))
			allowed(g, "GPU-a")
			time.Sleep(time.Second)
			if err := g.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			n, died := 0, false
			w.fault = func(statefile.Step) error {
				if n++; n > at {
					died = true
					return errors.New("killed")
				}
				return nil
			}
			got := allowed(g, "GPU-a")
			w.fault = nil
			if len(got) > 0 && slices.Contains(listed(w.open().Advertise(by())), "GPU-a") {
				t.Errorf("step %d: the GPU is published, and the next agent lists it", at)
			}
			if len(got) == 0 && !slices.Contains(listed(g.Advertise(by())), "GPU-a") {
				t.Errorf("step %d: the GPU is in no API", at)
			}
			if !died {
				break
			}
			steps++
		}
		if steps < 3 {
			t.Errorf("only %d steps were tried", steps)
		}
	})
}

// TestNeverBoth takes random steps of the device plugin, the kubelet, the publisher and the API server, with agents that end at any
// moment: at no time does the kubelet count a GPU that a slice has.
func TestNeverBoth(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			g := w.open()
			all := []gpu.UUID{"GPU-a", "GPU-b", "GPU-c"}
			var dra, sent, pool, slicesHave []gpu.UUID // the wanted use, the list on its way, the library's pool, the API server's
			for range 200 {
				switch rapid.SampledFrom([]string{"switch", "list", "kubelet", "publish", "write", "read", "look", "look", "restart"}).Draw(r, "step") {
				case "switch":
					dra = slices.DeleteFunc(slices.Clone(all), func(gpu.UUID) bool { return rapid.Bool().Draw(r, "plugin") })
				case "list":
					sent = listed(g.Advertise(by(dra...)))
				case "kubelet":
					w.count(sent...)
				case "publish":
					pool = allowed(g, dra...)
				case "write":
					if end, err := g.Write(pool); err == nil {
						slicesHave = slices.Clone(pool)
						end()
					}
				case "read":
					g.Read()(slicesHave)
				case "look":
					w.count(sent...) // The kubelet has had the time.
					time.Sleep(settles)
					if err := g.look(t.Context()); err != nil {
						t.Fatal(err)
					}
				case "restart":
					// The kubelet counts no device of an agent that has ended.
					sent, pool = nil, nil
					w.count()
					g = w.open()
				}
				for _, id := range slicesHave {
					if slices.Contains(w.counted, id) {
						r.Fatalf("GPU %s is in both APIs", id)
					}
				}
			}
		})
	})
}
