package agent

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/stub"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const guestResource = "example.com/gpu"

// guest is a second vendor, with two GPUs, whose scans a test replaces while the agent runs.
type guest struct {
	*stub.Vendor
	root string
	mu   sync.Mutex
	scan func(context.Context) (gpu.Snapshot, error)
	// scans counts those that began since scan was replaced.
	scans int
}

func newGuest(t testing.TB) *guest {
	t.Helper()
	g := &guest{root: t.TempDir()}
	g.Vendor = stub.New(g.root)
	g.scan = g.Vendor.Scan
	files := map[string]string{"driver": "1.0"}
	for index := range 2 {
		folder := "gpu" + strconv.Itoa(index)
		files[folder+"/uuid"], files[folder+"/product"], files[folder+"/memory"] = "EX-"+strconv.Itoa(index), "Example One", "1073741824"
	}
	for name, content := range files {
		path := filepath.Join(g.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g *guest) Scan(ctx context.Context) (gpu.Snapshot, error) {
	g.mu.Lock()
	g.scans++
	scan := g.scan
	g.mu.Unlock()
	return scan(ctx)
}

func (g *guest) set(scan func(context.Context) (gpu.Snapshot, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.scan, g.scans = scan, 0
}

func (g *guest) began() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.scans
}

// published is the state of NVIDIA's GPUs as clients see it.
type published struct {
	Devices    []string
	Use        []string
	Labels     map[string]string
	Taints     []any
	Conditions []any
}

// nvidia reads that state from the kubelet and the API server.
func (w *work) nvidia() published {
	w.b.t.Helper()
	node := w.api.Node()
	p := published{Devices: w.b.kubelet.State(resource).Healthy, Labels: node.GetLabels()}
	slices.Sort(p.Devices)
	for _, unit := range w.b.agent.devices.allocatable.Units() {
		if unit.Use.Resource != guestResource {
			p.Use = append(p.Use, string(unit.Key.GPU)+" "+unit.Use.String())
		}
	}
	spec, _ := node.Object["spec"].(map[string]any)
	status, _ := node.Object["status"].(map[string]any)
	p.Taints, _ = spec["taints"].([]any)
	for _, one := range status["conditions"].([]any) {
		fields, _ := one.(map[string]any)
		condition := map[string]any{"type": fields["type"], "status": fields["status"], "reason": fields["reason"]}
		if text, _ := json.Marshal(fields["message"]); strings.Contains(string(text), "GPU-") {
			condition["message"] = fields["message"]
		}
		p.Conditions = append(p.Conditions, condition)
	}
	return p
}

// TestVendorBesideNVIDIA checks that, whatever another vendor does, the state of NVIDIA's GPUs in the kubelet and the
// API server does not change, and that a fault of one of them reaches the kubelet as fast as without the other vendor.
func TestVendorBesideNVIDIA(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		scan func(g *guest) func(context.Context) (gpu.Snapshot, error)
		// left is how many devices of the other vendor are healthy afterwards, fault the code of the reported problem.
		left  int
		fault string
	}{
		"hangs": {func(g *guest) func(context.Context) (gpu.Snapshot, error) {
			return func(context.Context) (gpu.Snapshot, error) {
				time.Sleep(time.Minute)
				return gpu.Snapshot{}, context.DeadlineExceeded
			}
		}, 2, "HARDWARE_TIMEOUT"},
		"returns garbage": {func(g *guest) func(context.Context) (gpu.Snapshot, error) {
			return func(ctx context.Context) (gpu.Snapshot, error) {
				s, err := g.Vendor.Scan(ctx)
				s.GPUs[0].Nodes[0].Path = "/dev/nvidia0"
				return s, err
			}
		}, 2, "SCAN_REFUSED"},
		"panics": {func(*guest) func(context.Context) (gpu.Snapshot, error) {
			return func(context.Context) (gpu.Snapshot, error) { panic("a bug") }
		}, 0, "VENDOR_WITHDRAWN"},
		"disappears": {func(g *guest) func(context.Context) (gpu.Snapshot, error) {
			return func(ctx context.Context) (gpu.Snapshot, error) {
				return stub.New(filepath.Join(g.root, "none")).Scan(ctx)
			}
		}, 0, "DRIVER_MISSING"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, other := newIdleBench(t, "t4x4"), newGuest(t)
			b.extra = []vendor.Vendor{other}
			w := countWork(b)
			basic := b.override
			b.override = func(c *v1alpha1.AgentConfig) {
				basic(c)
				c.PollInterval.Duration = 200 * time.Millisecond
				// A scan of NVIDIA takes more than a second when all tests of this package run at once on two busy CPUs.
				c.ScanDeadline, c.TaintUnhealthy = &metav1.Duration{Duration: 5 * time.Second}, true
			}
			b.agent = b.start()
			b.await(healthy(4))
			b.awaitOf(guestResource, healthy(2))
			condition := func() nodeapi.NodeCondition {
				found, _ := healthsync.Summarize(healthsync.Devices(b.agent.node.inventory.Current()))
				return found
			}
			settled := func() bool {
				p := w.nvidia()
				return p.Labels["nvidia.com/gpu.count"] == "4" && p.Labels["berth.dev/gpu.healthy"] == "4" && len(p.Taints) == 1 && len(p.Conditions) == 2 && condition().OK
			}
			awaitTrue(t, "the labels and the condition of the Node", settled)
			before := w.nvidia()

			other.set(tc.scan(other))
			awaitTrue(t, "a scan of the other vendor", func() bool { return other.began() > 0 })
			awaitTrue(t, "the fault "+tc.fault, func() bool {
				current := b.agent.node.inventory.Current()
				causes := current.Faults
				for i := range current.GPUs {
					causes = append(slices.Clone(causes), current.GPUs[i].Health.Causes...)
				}
				return slices.ContainsFunc(causes, func(c gpu.Cause) bool { return c.Code == tc.fault })
			})
			b.awaitOf(guestResource, healthy(tc.left))
			time.Sleep(2 * time.Second) // This waits for ten scans of NVIDIA, and for any write that should not be made.
			if diff := cmp.Diff(before, w.nvidia()); diff != "" {
				t.Errorf("what others see of NVIDIA's GPUs (-before +after):\n%s", diff)
			}
			if state := b.kubelet.State(resource); state.Lowest != 4 {
				t.Errorf("the kubelet had %d healthy GPUs of NVIDIA for a moment, want always 4", state.Lowest)
			}
			if took := b.report("0", 79, string(b.uuid(0))); took > pathLimit {
				t.Errorf("an XID took %v to the kubelet", took)
			}
		})
	}
}

// TestLateVendor: a vendor whose first scan hangs delays NVIDIA's GPUs by the deadline of a scan at most, keeps the record of its
// devices' use over a restart, and gets its devices to the kubelet when the scan returns.
func TestLateVendor(t *testing.T) {
	t.Parallel()
	b, other := newIdleBench(t, "t4x4"), newGuest(t)
	b.extra = []vendor.Vendor{other}
	b.override = func(c *v1alpha1.AgentConfig) { c.ScanDeadline = &metav1.Duration{Duration: time.Second} }
	_, end := b.startUntil()
	b.await(healthy(4))
	b.awaitOf(guestResource, healthy(2))
	end()

	release := make(chan struct{})
	other.set(func(ctx context.Context) (gpu.Snapshot, error) {
		<-release
		return other.Vendor.Scan(ctx)
	})
	began := time.Now()
	b.agent = b.start()
	awaitTrue(t, "NVIDIA's GPUs in the list of devices", func() bool {
		return slices.ContainsFunc(b.agent.offers(), func(o offer.Offer) bool { return o.Resource == resource && len(o.Devices) == 4 })
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("NVIDIA's GPUs were advertised after %v, want not much more than the deadline of one second", took)
	}
	kept := 0
	for _, unit := range b.agent.devices.allocatable.Units() {
		if unit.Use.Resource == guestResource {
			kept++
		}
	}
	if kept != 2 {
		t.Errorf("the record has %d devices of the late vendor, want 2", kept)
	}
	close(release)
	b.awaitOf(guestResource, healthy(2))
	b.await(healthy(4))
}
