// Package vendortest has the tests that each vendor must pass, whatever its hardware.
//
// It guarantees that they use nothing but the interface and what the vendor's own test states about its machine. Only
// tests import it.
package vendortest

import (
	"context"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
)

// patience bounds the time after which a call must have noticed that its context has ended.
const patience = 10 * time.Second

// Machine is a vendor on a machine that a test can change.
type Machine struct {
	Vendor hardware.Vendor
	// GPUs is how many GPUs the machine has, all of them healthy.
	GPUs int
	// RemoveDriver and RestoreDriver remove the driver and restore it.
	RemoveDriver  func(t *testing.T)
	RestoreDriver func(t *testing.T)
}

// Run runs the tests. open returns a new machine for each of them.
func Run(t *testing.T, open func(t *testing.T) Machine) {
	for name, test := range map[string]func(*testing.T, Machine){
		"traits": traits, "scan": scan, "ended contexts": ended, "driver is removed and restored": driver, "samples": samples,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func traits(t *testing.T, m Machine) {
	got := m.Vendor.Traits()
	if got.Name == "" || got.Name != strings.ToLower(got.Name) || strings.ContainsAny(got.Name, " /.") || got.Title == "" {
		t.Errorf("name %q, title %q", got.Name, got.Title)
	}
	if !strings.Contains(got.ResourcePrefix, ".") || strings.Contains(got.ResourcePrefix, "/") {
		t.Errorf("the resource prefix %q is not a domain", got.ResourcePrefix)
	}
	if len(got.NodePrefixes) == 0 || slices.ContainsFunc(got.NodePrefixes, func(p string) bool { return !strings.HasPrefix(p, "/dev/") || p == "/dev/" }) {
		t.Errorf("the prefixes of device nodes are %q", got.NodePrefixes)
	}
	if !reflect.DeepEqual(got, m.Vendor.Traits()) {
		t.Error("two calls return different traits")
	}
}

// mustScan returns a scan, which must have no error in any state of the driver.
func mustScan(t *testing.T, m Machine) gpu.Snapshot {
	t.Helper()
	snapshot, err := m.Vendor.Scan(t.Context())
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return snapshot
}

// scan checks that a scan is complete and consistent, and that a second scan of the same machine returns the same.
func scan(t *testing.T, m Machine) {
	s, traits := mustScan(t, m), m.Vendor.Traits()
	if len(s.GPUs) != m.GPUs || len(s.Faults) > 0 {
		t.Fatalf("%d GPUs and the faults %v, want %d and none", len(s.GPUs), s.Faults, m.GPUs)
	}
	if len(s.Vendors) != 1 || s.Vendors[0].Name != traits.Name || !s.Vendors[0].Driver.Present() || !s.Vendors[0].Scanned {
		t.Fatalf("the vendors are %+v", s.Vendors)
	}
	checkGPUs(t, &s)
	checkNodes(t, &s, traits)
	checkTopology(t, &s)
	again := mustScan(t, m)
	for i := range s.GPUs {
		s.GPUs[i].Life, again.GPUs[i].Life = gpu.Life{}, gpu.Life{}
	}
	if !reflect.DeepEqual(s, again) {
		t.Errorf("a second scan of the same machine differs:\n%+v\n%+v", s, again)
	}
}

// checkGPUs checks that each GPU has an identity, the vendor's driver, a device node and no fault.
func checkGPUs(t *testing.T, s *gpu.Snapshot) {
	t.Helper()
	vendor := s.Vendors[0]
	seen := map[gpu.UUID]bool{}
	for i, g := range s.GPUs {
		if g.UUID == "" || seen[g.UUID] || g.Index != i || g.Product == "" || g.MemoryBytes == 0 {
			t.Errorf("GPU %d is %+v", i, g)
		}
		if g.Vendor != vendor.Name || g.Driver != vendor.Driver {
			t.Errorf("GPU %d is of %s with the driver %+v, want %s with %+v", i, g.Vendor, g.Driver, vendor.Name, vendor.Driver)
		}
		if g.Health.State != "" || len(g.Health.Causes) > 0 {
			t.Errorf("GPU %d is not healthy: %+v", i, g.Health)
		}
		if len(g.Nodes) == 0 {
			t.Errorf("GPU %d has no device node", i)
		}
		seen[g.UUID] = true
	}
}

// checkNodes checks that all device nodes are the vendor's.
func checkNodes(t *testing.T, s *gpu.Snapshot, traits gpu.Traits) {
	t.Helper()
	nodes := slices.Clone(s.Vendors[0].Shared)
	for _, g := range s.GPUs {
		nodes = append(nodes, g.Nodes...)
	}
	for _, node := range nodes {
		ours := func(prefix string) bool { return strings.HasPrefix(node.Path, prefix) }
		if path.Clean(node.Path) != node.Path || !ours(gpu.DRMPrefix) && !slices.ContainsFunc(traits.NodePrefixes, ours) {
			t.Errorf("%s is not a device node of %s", node.Path, traits.Title)
		}
	}
}

// checkTopology checks that the links are symmetric and that no GPU has a link to itself.
func checkTopology(t *testing.T, s *gpu.Snapshot) {
	t.Helper()
	if len(s.Topology) != len(s.GPUs) {
		t.Fatalf("the topology has %d rows for %d GPUs", len(s.Topology), len(s.GPUs))
	}
	for i := range s.Topology {
		for j := range s.Topology {
			if s.Topology[i][j] != s.Topology[j][i] || i == j && s.Topology[i][j] != (gpu.Link{}) {
				t.Errorf("the link of %d and %d is %+v and back %+v", i, j, s.Topology[i][j], s.Topology[j][i])
			}
		}
	}
}

// ended checks that no call outlasts its context.
func ended(t *testing.T, m Machine) {
	mustScan(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan string, 2)
	go func() { _ = m.Vendor.Watch(ctx, func(gpu.Event) {}); done <- "Watch" }()
	go func() { _ = m.Vendor.Sample(ctx, func(gpu.Sample) {}); done <- "Sample" }()
	select {
	case call := <-done:
		t.Errorf("%s returned although its context has not ended", call)
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	for range 2 {
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("a call has not returned after its context ended")
		}
	}
	if _, err := m.Vendor.Scan(ctx); err == nil {
		t.Error("a scan with an ended context returned no error")
	}
}

func driver(t *testing.T, m Machine) {
	before := mustScan(t, m)
	m.RemoveDriver(t)
	gone := mustScan(t, m)
	if len(gone.Faults) == 0 || gone.DriverPresent() || len(gone.Vendors) != 1 {
		t.Errorf("without a driver: faults %v, vendors %+v", gone.Faults, gone.Vendors)
	}
	for _, g := range gone.GPUs {
		if g.Health.State != gpu.Gone || g.Driver.Present() {
			t.Errorf("without a driver %s is %+v", g.UUID, g.Health)
		}
	}
	m.RestoreDriver(t)
	back := mustScan(t, m)
	if len(back.GPUs) != len(before.GPUs) || back.GPUs[0].UUID != before.GPUs[0].UUID || len(back.Faults) > 0 || !back.DriverPresent() {
		t.Errorf("with the driver again: %d GPUs, faults %v", len(back.GPUs), back.Faults)
	}
}

// samples checks that the first measurement is taken immediately, and is about the GPUs of the scan.
func samples(t *testing.T, m Machine) {
	s := mustScan(t, m)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var first *gpu.Sample
	_ = m.Vendor.Sample(ctx, func(sample gpu.Sample) {
		if first == nil {
			first = &sample
		}
		cancel()
	})
	if first == nil || len(first.GPUs) != len(s.GPUs) {
		t.Fatalf("the first measurement is %+v, want %d GPUs", first, len(s.GPUs))
	}
	for i, one := range first.GPUs {
		if size, ok := one.Get(gpu.MemorySize); one.GPU != s.GPUs[i].UUID || !ok || size <= 0 {
			t.Errorf("the measurement %d is of %s with %v bytes", i, one.GPU, size)
		}
	}
}
