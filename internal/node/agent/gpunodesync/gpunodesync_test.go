package gpunodesync

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// source is a fake of each dependency: a value with a subscription.
type source[T any] struct {
	mu      sync.Mutex
	value   T
	changed signal.Broadcast
}

func (s *source[T]) get() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

func (s *source[T]) set(value T) {
	s.mu.Lock()
	s.value = value
	s.mu.Unlock()
	s.changed.Set()
}

func (s *source[T]) Subscribe() *signal.Subscription    { return s.changed.Subscribe() }
func (s *source[T]) SubscribeUse() *signal.Subscription { return s.changed.Subscribe() }

type (
	hardware   struct{ source[*gpu.Snapshot] }
	holdings   struct{ source[[]ledger.Holding] }
	devices    struct{ source[[]offer.Unit] }
	settings   struct{ source[configwatch.State] }
	conditions struct{ source[[]metav1.Condition] }
	problems   struct{ source[[]gpu.Cause] }
	kubelet    struct{ source[string] }
)

func (f *hardware) Current() *gpu.Snapshot     { return f.get() }
func (f *holdings) Holdings() []ledger.Holding { return f.get() }
func (f *devices) Units() []offer.Unit         { return f.get() }
func (f *settings) Current() configwatch.State { return f.get() }
func (f *conditions) All() []metav1.Condition  { return f.get() }
func (f *problems) All() []gpu.Cause           { return f.get() }

func (f *kubelet) TopologyManagerPolicy() string { return f.get() }

// summary prints the fields that the tests compare.
func summary(node *v1alpha1.GPUNode) string {
	var out strings.Builder
	for _, d := range node.Status.Devices {
		fmt.Fprintf(&out, "%s", d.UUID)
		if d.Offered != nil {
			fmt.Fprintf(&out, " as %s %s x%d %d MiB", d.Offered.Resource, d.Offered.Sharing, d.Offered.Replicas, d.Offered.PinnedMemoryMiB)
			if d.Offered.SingleUser {
				out.WriteString(" one user")
			}
		}
		if d.Excluded {
			out.WriteString(" excluded")
		}
		for _, h := range d.Holders {
			fmt.Fprintf(&out, " held by %s", h.Pod)
		}
		out.WriteByte('\n')
	}
	for _, c := range node.Status.Conditions {
		fmt.Fprintf(&out, "%s=%s\n", c.Type, c.Status)
	}
	for _, p := range node.Status.Problems {
		fmt.Fprintf(&out, "%s\n", p.Code)
	}
	if policy := node.Status.Kubelet.TopologyManagerPolicy; policy != "" {
		fmt.Fprintf(&out, "kubelet %s\n", policy)
	}
	fmt.Fprintf(&out, "config %s layout %s", node.Status.Config.Source, node.Status.Config.MIGLayout)
	return out.String()
}

// TestPublish checks that nothing is published before the ledger was compared and the gate has decided, and that each change leads to one
// object.
func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l, d, s, c, p, k := &hardware{}, &holdings{}, &devices{}, &settings{}, &conditions{}, &problems{}, &kubelet{}
		h.value = &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580"}}},
			GPUs: []gpu.GPU{{UUID: "GPU-a", Vendor: gpu.NVIDIA}, {UUID: "GPU-b", Vendor: gpu.NVIDIA, Index: 1}}}
		s.value = configwatch.State{Config: &v1alpha1.AgentConfig{}}
		compared, decided := make(chan struct{}), make(chan struct{})
		var published []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		syncer := New(Deps{
			NodeName: "n", Vendor: gpu.NVIDIA, Ready: []<-chan struct{}{compared}, Hardware: h, Ledger: l, Devices: d, Config: s, Conditions: c, Gate: gateOff{decided}, Problems: p, Kubelet: k,
			Publish: func(node *v1alpha1.GPUNode) { published = append(published, summary(node)) },
		})
		go func() { done <- syncer.Run(ctx) }()
		synctest.Wait()
		if len(published) > 0 {
			t.Errorf("published before the ledger was compared: %v", published)
		}
		close(compared)
		time.Sleep(settle)
		synctest.Wait()
		if len(published) > 0 {
			t.Errorf("published before the gate has decided, as if it were off: %v", published)
		}
		close(decided)
		time.Sleep(settle)
		synctest.Wait()
		if len(published) == 0 {
			t.Fatal("nothing was published")
		}
		pod := gpu.Holder{Kind: gpu.HolderPod, PodUID: "uid", Namespace: "ns", Name: "train-0"}
		steps := []struct {
			change func()
			want   string
		}{
			{func() {
				d.set([]offer.Unit{
					{Key: gpu.DeviceKey{GPU: "GPU-a"}, Use: offer.Use{Resource: "nvidia.com/gpu"}},
					{Key: gpu.DeviceKey{GPU: "GPU-b"}, Use: offer.Use{Resource: "nvidia.com/shared", Mode: offer.MPS,
						Replicas: 2, MPSLimits: gpu.MPSLimits{PinnedMemoryMiB: 512, SingleUser: true}}},
				})
			}, "GPU-a as nvidia.com/gpu  x0 0 MiB\nGPU-b as nvidia.com/shared mps x2 512 MiB one user\nconfig  layout "},
			{func() {
				l.set([]ledger.Holding{
					{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-a"}, Holder: pod}},
					{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-b", Share: 1}, Holder: gpu.Holder{Kind: gpu.HolderPod}}},
				})
			}, "GPU-a as nvidia.com/gpu  x0 0 MiB held by train-0\nGPU-b as nvidia.com/shared mps x2 512 MiB one user\nconfig  layout "},
			{func() {
				d.value = nil
				l.value = nil
				d.changed.Set() // As allocatable does for a new configuration.
				s.set(configwatch.State{
					Config: &v1alpha1.AgentConfig{GPUs: []v1alpha1.GPURule{{Select: v1alpha1.GPUSelector{Index: []int{1}}, Exclude: true}}},
					Source: "file", MIG: configwatch.MIG{Layout: "all-1g"},
				})
			}, "GPU-a\nGPU-b excluded\nconfig file layout all-1g"},
			{func() { c.set([]metav1.Condition{{Type: "ConfigAccepted", Status: metav1.ConditionTrue}}) },
				"GPU-a\nGPU-b excluded\nConfigAccepted=True\nconfig file layout all-1g"},
			{func() { p.set([]gpu.Cause{{Code: "CDI_SPEC_KEPT"}}) },
				"GPU-a\nGPU-b excluded\nConfigAccepted=True\nCDI_SPEC_KEPT\nconfig file layout all-1g"},
			{func() { k.set("best-effort") },
				"GPU-a\nGPU-b excluded\nConfigAccepted=True\nCDI_SPEC_KEPT\nkubelet best-effort\nconfig file layout all-1g"},
			{func() { k.set("") }, "GPU-a\nGPU-b excluded\nConfigAccepted=True\nCDI_SPEC_KEPT\nconfig file layout all-1g"},
			{func() { h.set(&gpu.Snapshot{}) }, "ConfigAccepted=True\nCDI_SPEC_KEPT\nconfig file layout all-1g"},
		}
		for i, step := range steps {
			published = nil
			step.change()
			time.Sleep(settle)
			synctest.Wait()
			if len(published) != 1 {
				t.Fatalf("step %d: %d objects, want 1", i, len(published))
			}
			if diff := cmp.Diff(step.want, published[0]); diff != "" {
				t.Errorf("step %d: object (-want +got):\n%s", i, diff)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// gateOff is a gate that is off.
type gateOff struct{ decided chan struct{} }

func (g gateOff) Decided() <-chan struct{} { return g.decided }

func (gateOff) Status() *v1alpha1.GateStatus { return nil }

func (gateOff) Subscribe() *signal.Subscription { return new(signal.Broadcast).Subscribe() }
