package metricsync

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	uid       = "11111111-2222-3333-4444-555555555555"
	container = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// TestRun checks that nothing is rendered before the first measurement, that each change is shown, also without a new
// measurement, and that the processes of a GPU have the names of their pod and container.
func TestRun(t *testing.T) {
	proc := t.TempDir()
	dir := filepath.Join(proc, "7")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cgroup := fmt.Sprintf("0::/kubepods.slice/kubepods-pod%s.slice/cri-containerd-%s.scope\n", strings.ReplaceAll(uid, "-", "_"), container)
	stat := "7 (train) S" + strings.Repeat(" 1", 49) + "\n"
	for name, text := range map[string]string{"cgroup": cgroup, "stat": stat} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var changed signal.Broadcast
		var mode atomic.Value
		mode.Store(offer.TimeSlicing)
		var unanswered atomic.Value
		samples := make(chan gpu.Sample)
		page := metrics.NewPage(metrics.PageDeps{Own: prometheus.NewRegistry()})
		key := gpu.DeviceKey{GPU: "GPU-a"}
		s := New(Deps{
			NodeName: "node-0", ProcRoot: proc, Page: page,
			Sample: func(ctx context.Context, take func(gpu.Sample)) error {
				for {
					select {
					case <-ctx.Done():
						return nil
					case sample := <-samples:
						take(sample)
					}
				}
			},
			Hardware: func() *gpu.Snapshot { return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a", Vendor: "v"}}} },
			Units: func() []offer.Unit {
				return []offer.Unit{{Key: key, Use: offer.Use{Mode: mode.Load().(offer.Mode), Replicas: 2}}}
			},
			Holdings: func() []gpu.Holding {
				return []gpu.Holding{{Key: key, Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: uid, Namespace: "ml", Name: "train"}}}
			},
			XIDs: func() []metrics.XIDCount { return nil },
			ContainerName: func(id string) string {
				return map[string]string{container: "cuda"}[id]
			},
			DCGMFields: []dcgm.Export{
				{Field: dcgm.Field{Name: "A", Of: func(*gpu.Readings) (float64, bool) { return 0, false }}, Listed: true},
				{Field: dcgm.Field{Name: "B", Of: func(*gpu.Readings) (float64, bool) { return 1, true }}, Listed: true},
			},
			Report: func(_ string, problems ...gpu.Cause) {
				names := ""
				for _, p := range problems {
					name, _, _ := strings.Cut(p.Message, ":")
					names += name
				}
				unanswered.Store(names)
			},
			Vendors: []gpu.Traits{{Name: "v", DCGM: true}},
			Changed: []func() *signal.Subscription{changed.Subscribe},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		shown := func() string {
			synctest.Wait()
			recorder := httptest.NewRecorder()
			page.ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
			return recorder.Body.String()
		}
		if text := shown(); strings.Contains(text, "GPU-a") {
			t.Errorf("before a measurement the page shows\n%s", text)
		}
		samples <- gpu.Sample{GPUs: []gpu.GPUSample{{GPU: "GPU-a", Processes: []gpu.ProcessSample{{PID: 7}, {PID: 8}}}}}
		if text := shown(); !strings.Contains(text, `pod="train"`) || !strings.Contains(text, "timeslicing") {
			t.Errorf("after a measurement the page has no pod train, time-sliced:\n%s", text)
		}
		if got := unanswered.Load(); got != nil {
			t.Errorf("after one measurement the fields %v are without a value", got)
		}
		samples <- gpu.Sample{GPUs: []gpu.GPUSample{{GPU: "GPU-a", Sources: []gpu.SourceStatus{{OK: true}}, Processes: []gpu.ProcessSample{{PID: 7}, {PID: 8}}}}}
		if shown(); unanswered.Load() != "A" {
			t.Errorf("after two measurements the fields %v are without a value, want A", unanswered.Load())
		}
		mode.Store(offer.MPS)
		changed.Set()
		if text := shown(); !strings.Contains(text, `"mps"`) {
			t.Errorf("after the change of the use the page has no mode mps:\n%s", text)
		}
		if owner := s.owners(s.last.Load(), s.deps.Holdings())[7]; owner.Container != "cuda" || owner.PodUID != uid {
			t.Errorf("process 7 belongs to %+v", owner)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestOwn checks the agent's own metrics, with one series for each code of a problem.
func TestOwn(t *testing.T) {
	registry := NewRegistry(OwnDeps{
		Plugin: func() []deviceplugin.Stats {
			return []deviceplugin.Stats{{Resource: "nvidia.com/gpu", Devices: 8, Healthy: 7, Registered: true, Allocations: 3}}
		},
		Holdings: func() []gpu.Holding {
			claim := gpu.Holder{Kind: gpu.HolderClaim, ID: "c1"}
			return []gpu.Holding{{Holder: gpu.Holder{Kind: gpu.HolderPod}}, {Holder: gpu.Holder{Kind: gpu.HolderPod}}, {Holder: claim}, {Holder: claim}}
		},
		DRA: func() dra.Stats {
			return dra.Stats{Active: true, Slices: 3, TwoAPIs: 5, Age: 4 * time.Second, Calls: []dra.Calls{{
				Operation: "prepare", Count: 5, Seconds: 6, Buckets: map[float64]uint64{1: 4}, Errors: []dra.CallErrors{{Reason: "held", Count: 2}},
			}}}
		},
		Problems: func() []gpu.Cause { return []gpu.Cause{{Code: "A"}, {Code: "A"}, {Code: "B"}} },
		Refused:  func() map[string]uint64 { return map[string]uint64{"nvidia.com/gpu": 6} },
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				if slices.Contains([]string{"code", "kind", "operation", "reason"}, label.GetName()) {
					name += " " + label.GetValue()
				}
			}
			found[name] += value(m)
		}
	}
	for name, want := range map[string]float64{
		"berth_device_plugin_devices": 8, "berth_device_plugin_healthy_devices": 7, "berth_device_plugin_registered": 1,
		"berth_device_plugin_allocations_total": 3, "berth_pods_refused_total": 6, "berth_holdings Pod": 2, "berth_holdings Claim": 2,
		"berth_dra_claims": 1, "berth_dra_resource_slices": 3, "berth_dra_devices_in_two_apis": 5, "berth_dra_publish_age_seconds": 4, "berth_dra_errors_total prepare held": 2,
		"berth_dra_call_duration_seconds prepare": 5, "berth_problem A": 1, "berth_problem B": 1, "berth_build_info": 1,
	} {
		if got, ok := found[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v; all: %v", name, got, want, found)
		}
	}
}

// value is that of a gauge or counter, or the count of a histogram.
func value(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
}

// TestOwnWithoutDRA: a node that allocates nothing through DRA has no metric of it.
func TestOwnWithoutDRA(t *testing.T) {
	families, err := NewRegistry(OwnDeps{
		Plugin: func() []deviceplugin.Stats { return nil }, Holdings: func() []gpu.Holding { return nil },
		Problems: func() []gpu.Cause { return nil }, DRA: func() dra.Stats { return dra.Stats{Age: -1} }, Refused: func() map[string]uint64 { return nil },
	}).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "berth_dra_") {
			t.Errorf("%s is shown", family.GetName())
		}
	}
}
