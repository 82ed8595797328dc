package inventory_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

// other is a second vendor whose behaviour a test changes while it runs.
type other struct {
	mu    sync.Mutex
	name  string
	scan  func(ctx context.Context) (gpu.Snapshot, error)
	watch func(ctx context.Context, emit func(gpu.Event)) error
	scans int
}

func (o *other) Traits() gpu.Traits {
	return gpu.Traits{Name: o.name, Title: "Example", NodePrefixes: []string{"/dev/example"}}
}

func (o *other) Scan(ctx context.Context) (gpu.Snapshot, error) {
	o.mu.Lock()
	o.scans++
	scan := o.scan
	o.mu.Unlock()
	return scan(ctx)
}

func (o *other) Watch(ctx context.Context, emit func(gpu.Event)) error {
	o.mu.Lock()
	watch := o.watch
	o.mu.Unlock()
	if watch != nil {
		return watch(ctx, emit)
	}
	<-ctx.Done()
	return nil
}

func (o *other) set(scan func(context.Context) (gpu.Snapshot, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.scan = scan
}

// finds returns a scan with this number of GPUs of the vendor, changed by change unless it is nil.
func (o *other) finds(gpus int, change func(*gpu.Snapshot)) func(context.Context) (gpu.Snapshot, error) {
	return func(context.Context) (gpu.Snapshot, error) {
		s := gpu.Snapshot{Vendors: []gpu.VendorState{{Name: o.name, Driver: gpu.Driver{Version: "7"}}}, Topology: gpu.NewTopology(gpus)}
		for i := range gpus {
			s.GPUs = append(s.GPUs, gpu.GPU{
				UUID: gpu.UUID(fmt.Sprintf("EX-%d", i)), Vendor: o.name, Index: i,
				Nodes: []gpu.DeviceNode{{Path: fmt.Sprintf("/dev/example%d", i)}},
			})
		}
		if change != nil {
			change(&s)
		}
		return s, nil
	}
}

// pair returns an inventory of two NVIDIA GPUs and of another vendor, whose name is before or after NVIDIA's.
type pair struct {
	t         *testing.T
	nvidia    *source
	other     *other
	inventory *inventory.Inventory
	log       *bytes.Buffer
	began     time.Time
	// path is the health file.
	path string
	end  context.CancelFunc
}

func newPair(t *testing.T, name string, scan func(*other) func(context.Context) (gpu.Snapshot, error)) *pair {
	t.Helper()
	p := &pair{t: t, nvidia: newSource(2), other: &other{name: name}, log: &bytes.Buffer{}, began: time.Now(), path: filepath.Join(t.TempDir(), "health.json")}
	p.nvidia.snapshot.Topology.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
	p.other.scan = scan(p.other)
	p.inventory = inventory.New(inventory.Deps{
		Vendors: []inventory.Source{p.nvidia, p.other}, Clock: clock.RealClock{}, Keep: p.path, BootID: "boot",
		Log: slog.New(slog.NewTextHandler(p.log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.inventory.Run(ctx) }()
	p.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(p.end)
	synctest.Wait()
	return p
}

// gpus returns the GPUs of a vendor in the present snapshot.
func (p *pair) gpus(vendor string) []gpu.GPU {
	var list []gpu.GPU
	for _, g := range p.inventory.Current().GPUs {
		if g.Vendor == vendor {
			list = append(list, g)
		}
	}
	return list
}

// untouched checks that NVIDIA's GPUs are as they would be alone, that their polls continue, and that their events and
// refreshes are not delayed.
func (p *pair) untouched(when string) {
	p.t.Helper()
	now := time.Now()
	s := p.inventory.Current()
	gpus := p.gpus(gpu.NVIDIA)
	if len(gpus) != 2 || s.Vendor(gpu.NVIDIA).Driver.Version != "1" {
		p.t.Fatalf("%s: NVIDIA has %d GPUs and the driver %q", when, len(gpus), s.Vendor(gpu.NVIDIA).Driver.Version)
	}
	for i, g := range gpus {
		if g.UUID != idOf(i) || g.Health.State != gpu.Healthy || len(g.Health.Causes) > 0 {
			p.t.Errorf("%s: NVIDIA's GPU %d is %s %+v", when, i, g.UUID, g.Health)
		}
	}
	at := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == idOf(0) })
	if len(s.Topology) != len(s.GPUs) || s.Topology[at][at+1].Count != 4 {
		p.t.Errorf("%s: the topology is %v, want NVIDIA's links in it", when, s.Topology)
	}
	for _, fault := range s.Faults {
		if !strings.HasPrefix(fault.Message, "Example: ") {
			p.t.Errorf("%s: the fault %+v does not name its vendor", when, fault)
		}
	}
	if err := p.inventory.Of(gpu.NVIDIA).Refresh(p.t.Context()); err != nil {
		p.t.Errorf("%s: refresh: %v", when, err)
	}
	p.nvidia.events <- gpu.Event{GPU: idOf(1), GI: gpu.NoInstance, CI: gpu.NoInstance, Code: gpu.XID(79)}
	synctest.Wait()
	if g := p.inventory.Current().GPU(idOf(1)); g == nil || g.Health.State != gpu.NeedsReboot {
		p.t.Errorf("%s: after an XID the GPU is %+v", when, g)
	}
	if waited := time.Since(now); waited != 0 {
		p.t.Errorf("%s: a refresh and an event took %v, want no time", when, waited)
	}
	if err := p.inventory.Report(p.t.Context(), gpu.Event{GPU: idOf(1), GI: gpu.NoInstance, CI: gpu.NoInstance, Reset: true, Time: time.Now().Add(time.Millisecond)}); err != nil {
		p.t.Error(err)
	}
	before := p.nvidia.count()
	time.Sleep(10 * inventory.DefaultPoll)
	synctest.Wait()
	if polls := p.nvidia.count() - before; polls < 10 {
		p.t.Errorf("%s: %d scans of NVIDIA in ten polls", when, polls)
	}
	if g := p.inventory.Current().GPU(idOf(1)); g.Health.State != gpu.Healthy {
		p.t.Errorf("%s: the GPU is %+v after its reset", when, g.Health)
	}
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scans
}

// ready checks when the inventory became ready.
func (p *pair) ready(when time.Duration) {
	p.t.Helper()
	select {
	case <-p.inventory.Ready():
	case <-time.After(5 * time.Minute):
	}
	if got := time.Since(p.began); got != when {
		p.t.Errorf("ready after %v, want %v", got, when)
	}
}

func (p *pair) faults() string { return codes(p.inventory.Current(), "") }

// bothSides runs a test with a vendor whose name is before NVIDIA's, and one whose name is after.
func bothSides(t *testing.T, test func(t *testing.T, name string)) {
	for _, name := range []string{"example", "zeta"} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, name) }) })
	}
}

// TestTwoVendors checks that the parts are joined in the order of the vendors' names, and that each vendor's GPUs have
// events of their own.
func TestTwoVendors(t *testing.T) {
	bothSides(t, func(t *testing.T, name string) {
		p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) {
			return o.finds(3, func(s *gpu.Snapshot) { s.Topology.Set(0, 2, gpu.Link{Path: gpu.PathSameNUMA}) })
		})
		p.ready(0)
		s := p.inventory.Current()
		first := 2
		if name < gpu.NVIDIA {
			first = 0
		}
		var names []string
		for _, v := range s.Vendors {
			names = append(names, v.Name)
		}
		if len(s.GPUs) != 5 || s.GPUs[first].UUID != "EX-0" || !slices.IsSorted(names) || len(names) != 2 {
			t.Fatalf("vendors %v, GPUs %+v", names, s.GPUs)
		}
		for i := range s.GPUs {
			for j := range s.GPUs {
				if s.GPUs[i].Vendor != s.GPUs[j].Vendor && s.Topology[i][j] != (gpu.Link{}) {
					t.Errorf("GPUs of two vendors have a link: %v", s.Topology)
				}
			}
		}
		if s.Topology[first][first+2].Path != gpu.PathSameNUMA {
			t.Errorf("the topology lacks the links of the other vendor: %v", s.Topology)
		}
		p.untouched("with two vendors")
		if err := p.inventory.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
		if err := p.inventory.Of("none").Refresh(t.Context()); err == nil {
			t.Error("a vendor that does not exist was refreshed")
		}
	})
}

// TestOfVendor: the inventory of one vendor has its GPUs alone, and the same snapshot until the whole changes.
func TestOfVendor(t *testing.T) {
	bothSides(t, func(t *testing.T, name string) {
		p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) { return o.finds(2, nil) })
		p.ready(0)
		of := p.inventory.Of(name)
		first := of.Current()
		if len(first.GPUs) != 2 || first.GPUs[0].Vendor != name || len(first.Vendors) != 1 || of.Current() != first {
			t.Errorf("%d GPUs of %d vendors; the same again: %v", len(first.GPUs), len(first.Vendors), of.Current() == first)
		}
		if none := p.inventory.Of("").Current(); len(none.GPUs) > 0 || none.DriverPresent() {
			t.Errorf("no vendor has %+v", none)
		}
		p.other.set(p.other.finds(1, nil))
		if err := of.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := of.Current(); now == first || len(now.GPUs) == 2 && now.GPUs[1].Health.State != gpu.Gone {
			t.Errorf("after a GPU was lost: %+v", now.GPUs)
		}
	})
}

// TestVendorHangs checks that a first scan that takes 60 s delays Ready by its deadline only, and that its GPUs are
// published when it returns.
func TestVendorHangs(t *testing.T) {
	bothSides(t, func(t *testing.T, name string) {
		p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) {
			found := o.finds(2, nil)
			return func(ctx context.Context) (gpu.Snapshot, error) {
				time.Sleep(time.Minute)
				return found(ctx)
			}
		})
		p.ready(inventory.DefaultDeadline)
		if got := p.faults(); got != "HARDWARE_TIMEOUT" {
			t.Errorf("faults %q", got)
		}
		p.untouched("while the other hangs")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(p.gpus(name)); got != 2 {
			t.Errorf("%d GPUs of the other vendor after its scan returned", got)
		}
		p.other.set(p.other.finds(2, nil))
		time.Sleep(time.Minute) // until no scan hangs
	})
}

// TestVendorPanics checks that the vendor is withdrawn, whichever of its calls panics, and not called again.
func TestVendorPanics(t *testing.T) {
	for _, call := range []string{"Scan", "first Scan", "Watch"} {
		t.Run(call, func(t *testing.T) {
			bothSides(t, func(t *testing.T, name string) {
				broken := func(context.Context) (gpu.Snapshot, error) { panic("a bug") }
				wait := make(chan struct{})
				p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) {
					switch call {
					case "first Scan":
						return broken
					case "Watch":
						o.watch = func(context.Context, func(gpu.Event)) error { <-wait; panic("a bug") }
					}
					return o.finds(2, nil)
				})
				p.ready(0)
				if call != "first Scan" {
					p.untouched("before the panic")
					p.other.set(broken)
					close(wait)
					time.Sleep(inventory.DefaultPoll)
					synctest.Wait()
				}
				if got := p.faults(); got != "VENDOR_WITHDRAWN" {
					t.Errorf("faults %q", got)
				}
				for _, g := range p.gpus(name) {
					if g.Health.State != gpu.Gone || g.Health.Causes[0].Code != "VENDOR_WITHDRAWN" || g.Driver.Present() {
						t.Errorf("%s is %+v", g.UUID, g.Health)
					}
				}
				if want := map[bool]int{true: 0, false: 2}[call == "first Scan"]; len(p.gpus(name)) != want || p.inventory.Current().Vendor(name).Driver.Present() {
					t.Errorf("%d GPUs of the withdrawn vendor, want %d", len(p.gpus(name)), want)
				}
				p.other.mu.Lock()
				before := p.other.scans
				p.other.mu.Unlock()
				p.untouched("after the panic")
				if err := p.inventory.Refresh(t.Context()); err != nil {
					t.Errorf("refresh of all: %v", err)
				}
				if err := p.inventory.Of(name).Refresh(t.Context()); err == nil {
					t.Error("a withdrawn vendor was refreshed")
				}
				p.other.mu.Lock()
				defer p.other.mu.Unlock()
				if p.other.scans != before {
					t.Errorf("%d scans after the withdrawal", p.other.scans-before)
				}
				if text := p.log.String(); strings.Count(text, "Withdrew vendor") != 1 || !strings.Contains(text, "vendors_test.go") {
					t.Errorf("the log has no stack, or not one line of it:\n%s", text)
				}
			})
		})
	}
}

// TestVendorDisappears checks that the GPUs of a vendor disappear with its driver, and are back with it.
func TestVendorDisappears(t *testing.T) {
	bothSides(t, func(t *testing.T, name string) {
		p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) { return o.finds(2, nil) })
		p.ready(0)
		p.other.set(p.other.finds(0, func(s *gpu.Snapshot) {
			s.Vendors[0].Driver = gpu.Driver{}
			s.Faults = []gpu.Cause{{Code: "DRIVER_MISSING", Message: "no driver"}}
		}))
		time.Sleep(inventory.DefaultPoll)
		synctest.Wait()
		if len(p.gpus(name)) != 0 || p.faults() != "DRIVER_MISSING" {
			t.Errorf("GPUs %v, faults %q", p.gpus(name), p.faults())
		}
		p.untouched("without the other")
		p.other.set(p.other.finds(2, nil))
		time.Sleep(inventory.DefaultPoll)
		synctest.Wait()
		if len(p.gpus(name)) != 2 || p.faults() != "" {
			t.Errorf("GPUs %v, faults %q after it came back", p.gpus(name), p.faults())
		}
	})
}

// TestVendorReturnsGarbage checks that invalid data is refused as a whole, and that the last valid scan stays in force.
func TestVendorReturnsGarbage(t *testing.T) {
	garbage := map[string]func(*gpu.Snapshot){
		"a UUID of NVIDIA":     func(s *gpu.Snapshot) { s.GPUs[1].UUID = idOf(0) },
		"another vendor's GPU": func(s *gpu.Snapshot) { s.GPUs[1].Vendor = gpu.NVIDIA },
		"another vendor":       func(s *gpu.Snapshot) { s.Vendors[0].Name = gpu.NVIDIA },
		"two vendors":          func(s *gpu.Snapshot) { s.Vendors = append(s.Vendors, gpu.VendorState{Name: gpu.NVIDIA}) },
		"no vendor":            func(s *gpu.Snapshot) { s.Vendors = nil },
		"10,000 GPUs": func(s *gpu.Snapshot) {
			for i := range 10000 {
				s.GPUs = append(s.GPUs, gpu.GPU{UUID: gpu.UUID(fmt.Sprint("EX-", i+10)), Vendor: s.Vendors[0].Name})
			}
		},
		"a node of NVIDIA":        func(s *gpu.Snapshot) { s.GPUs[1].Nodes[0].Path = "/dev/nvidia0" },
		"the host's disk":         func(s *gpu.Snapshot) { s.GPUs[1].Nodes[0].Path = "/dev/example/../sda" },
		"a shared node of NVIDIA": func(s *gpu.Snapshot) { s.Vendors[0].Shared = []gpu.DeviceNode{{Path: "/dev/nvidiactl"}} },
		"a negative index":        func(s *gpu.Snapshot) { s.GPUs[1].Index = -1 },
		"too large a topology":    func(s *gpu.Snapshot) { s.Topology = gpu.NewTopology(9) },
		"one-way links":           func(s *gpu.Snapshot) { s.Topology[0][1].Count = 3 },
		"too many links":          func(s *gpu.Snapshot) { s.Topology.Set(0, 1, gpu.Link{Count: 1 << 20}) },
		"a path that is none":     func(s *gpu.Snapshot) { s.Topology.Set(0, 1, gpu.Link{Path: 99}) },
	}
	for what, change := range garbage {
		t.Run(what, func(t *testing.T) {
			bothSides(t, func(t *testing.T, name string) {
				p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) { return o.finds(2, nil) })
				p.ready(0)
				good := p.gpus(name)
				p.other.set(p.other.finds(2, change))
				time.Sleep(inventory.DefaultPoll)
				synctest.Wait()
				if diff := cmp.Diff(good, p.gpus(name)); diff != "" || p.faults() != "SCAN_REFUSED" {
					t.Errorf("faults %q; GPUs (-last good +shown):\n%s", p.faults(), diff)
				}
				p.untouched("beside garbage")
				p.other.set(p.other.finds(2, nil))
				time.Sleep(inventory.DefaultPoll)
				synctest.Wait()
				if p.faults() != "" {
					t.Errorf("faults %q after a good scan", p.faults())
				}
			})
		})
	}
}

// TestVendorTakesUUIDsFirst checks that a vendor that reports NVIDIA's UUIDs before NVIDIA's first scan returns neither
// hides NVIDIA's GPUs nor writes their health records.
func TestVendorTakesUUIDsFirst(t *testing.T) {
	bothSides(t, func(t *testing.T, name string) {
		p := newPair(t, name, func(o *other) func(context.Context) (gpu.Snapshot, error) {
			found := o.finds(2, func(s *gpu.Snapshot) {
				s.GPUs[1].UUID = idOf(0)
				s.GPUs[1].Health.Causes = []gpu.Cause{{Code: "OFF_BUS", Message: "not so"}}
			})
			return func(ctx context.Context) (gpu.Snapshot, error) { return found(ctx) }
		})
		p.ready(0)
		time.Sleep(inventory.DefaultPoll)
		synctest.Wait()
		if len(p.gpus(name)) != 0 || !strings.Contains(p.faults(), "SCAN_REFUSED") {
			t.Errorf("GPUs %v, faults %q", p.gpus(name), p.faults())
		}
		p.untouched("beside an impostor")
		p.end()
		blob, err := os.ReadFile(p.path)
		if err != nil || bytes.Contains(blob, []byte("OFF_BUS")) || !json.Valid(blob) {
			t.Errorf("the health file has records of the impostor: %v\n%s", err, blob)
		}
	})
}
