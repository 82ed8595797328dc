package configwatch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// reportWorld is a watcher, the inventory, the conditions and the problems.
type reportWorld struct {
	mu        sync.Mutex
	state     State
	snapshot  *gpu.Snapshot
	condition string
	problems  []gpu.Cause
	// syncs counts reports.
	syncs   int
	changed signal.Broadcast
}

type fixedState struct{ *reportWorld }

func (w fixedState) Current() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

type fixedHardware struct{ *reportWorld }

func (h fixedHardware) Current() *gpu.Snapshot { return h.snapshot }

func (w *reportWorld) Subscribe() *signal.Subscription { return w.changed.Subscribe() }

func (w *reportWorld) Set(kind string, status metav1.ConditionStatus, reason, message string) {
	w.condition = strings.Join([]string{kind, string(status), reason, message}, " ")
}

func (w *reportWorld) report(_ string, problems ...gpu.Cause) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = problems
	w.syncs++
}

func TestReport(t *testing.T) {
	refused := errors.New("agent.yaml:2: unknown key")
	tests := map[string]struct {
		state     State
		condition string
		problems  []gpu.Cause
	}{
		"defaults":        {condition: "ConfigAccepted True InForce in force: defaults and flags"},
		"a file":          {state: State{Source: "/etc/agent.yaml"}, condition: "ConfigAccepted True InForce in force: /etc/agent.yaml"},
		"waiting for one": {state: State{Waiting: true}},
		"refused": {
			state:     State{Source: "/etc/agent.yaml", Refused: refused},
			condition: "ConfigAccepted False Refused agent.yaml:2: unknown key",
			problems:  []gpu.Cause{{Code: "CONFIG_REFUSED", Message: "configuration refused, the last good one stays in force: agent.yaml:2: unknown key"}},
		},
		"everything at once": {
			state: State{
				Waiting: true, Lost: []Lost{{Code: "STATE_DAMAGED", Err: errors.New("config.last-good is damaged")}},
				Unsaved:   []error{errors.New("write the last good configuration: disk full")},
				Forbidden: []string{"configmaps ns/a: forbidden"}, Restart: []string{"kubeletDir", "cdiDir"},
			},
			problems: []gpu.Cause{
				{Code: "STATE_DAMAGED", Message: "config.last-good is damaged"},
				{Code: "STATE_UNWRITABLE", Message: "write the last good configuration: disk full; a restart could not go back to what is in force now"},
				{Code: "CONFIG_FORBIDDEN", Message: "configmaps ns/a: forbidden"},
				{Code: "CONFIG_RESTART", Message: "changed settings take effect only when the agent starts again: kubeletDir, cdiDir"},
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &reportWorld{problems: []gpu.Cause{{Code: "OLD"}}}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					done <- NewReporter(ReporterDeps{Config: fixedState{w}, Conditions: w, Report: w.report}).Run(ctx)
				}()
				synctest.Wait()
				w.mu.Lock()
				w.state, w.condition, w.syncs = tc.state, "", 0
				w.mu.Unlock()
				w.changed.Set()
				synctest.Wait()
				if w.condition != tc.condition || w.syncs != 1 {
					t.Errorf("condition %q after %d reports, want %q after 1", w.condition, w.syncs, tc.condition)
				}
				if diff := cmp.Diff(tc.problems, w.problems); diff != "" {
					t.Errorf("problems (-want +got):\n%s", diff)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestJudge(t *testing.T) {
	shared := func(replicas int) *v1alpha1.AgentConfig {
		return &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{{Sharing: &v1alpha1.Sharing{Mode: v1alpha1.SharingMode(offer.MPS), Replicas: replicas}}}}
	}
	w := &reportWorld{snapshot: &gpu.Snapshot{}}
	var repartitioned map[gpu.UUID]bool
	refusals := map[string]error{} // by resourceName
	j := JudgeByHardware(fixedHardware{w}, gpu.NVIDIA, func(by *v1alpha1.AgentConfig) (map[gpu.UUID]bool, error) {
		return repartitioned, refusals[by.ResourceName]
	})
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, shared(100)); refused != nil || known {
		t.Errorf("without a driver: %v, known %v", refused, known)
	}
	<-j.Changed()
	w.snapshot = &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580"}}}, GPUs: []gpu.GPU{{UUID: "GPU-a", Vendor: gpu.NVIDIA, MemoryBytes: 16 << 30, ComputeCapability: gpu.Version{Major: 7}}}}
	w.changed.Set()
	<-j.Changed()
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, shared(100)); !known || refused == nil || !strings.Contains(refused.Error(), "at most 48 clients") {
		t.Errorf("100 replicas: %v, known %v", refused, known)
	}
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, shared(4)); !known || refused != nil {
		t.Errorf("4 replicas: %v, known %v", refused, known)
	}
	// A MIG device that a change of the layout removes is no reason to refuse DRA for the others.
	both := &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{{
		Select: v1alpha1.GPUSelector{Index: []int{1}}, Allocation: &v1alpha1.Allocation{API: v1alpha1.AllocationDRA},
	}}}
	one, parted := w.snapshot, *w.snapshot
	for i, id := range []gpu.UUID{"GPU-a", "GPU-b"} {
		parted.GPUs = append(parted.GPUs[:i:i], gpu.GPU{Index: i, UUID: id, Vendor: gpu.NVIDIA, MemoryBytes: 16 << 30, MIG: gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{
			{Partition: gpu.Partition{UUID: "MIG-" + id, Profile: "1g.5gb"}},
		}}})
	}
	w.snapshot = &parted
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, both); !known || refused == nil || !strings.Contains(refused.Error(), "DRA would serve nvidia.com/mig-1g.5gb") {
		t.Errorf("one name by both APIs: %v, known %v", refused, known)
	}
	repartitioned = map[gpu.UUID]bool{"GPU-a": true}
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, both); !known || refused != nil {
		t.Errorf("one name by both APIs until a layout changes: %v, known %v", refused, known)
	}
	w.snapshot = one
	first, second := &v1alpha1.AgentConfig{ResourceName: "example.com/a"}, &v1alpha1.AgentConfig{ResourceName: "example.com/b"}
	refusals["example.com/b"] = errors.New("both would serve it")
	if refused, known := j.Refuse(first, second); !known || refused == nil || refused.Error() != "both would serve it" {
		t.Errorf("a layout that cannot be applied: %v, known %v", refused, known)
	}
	if refused, known := j.Refuse(second, second); !known || refused != nil {
		t.Errorf("a layout that cannot be applied now either: %v, known %v", refused, known)
	}
	// The settings are not about a GPU of another vendor.
	w.snapshot.GPUs[0].Vendor = "other"
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, shared(100)); !known || refused != nil {
		t.Errorf("a GPU of another vendor: %v, known %v", refused, known)
	}
	w.snapshot = &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: "other", Driver: gpu.Driver{Version: "1"}}}}
	if refused, known := j.Refuse(&v1alpha1.AgentConfig{}, shared(4)); known || refused != nil {
		t.Errorf("another vendor's driver alone: %v, known %v", refused, known)
	}
}
