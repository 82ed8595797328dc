package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/allocatable"
)

// TestSettlementsPerEvent counts how often the use of the devices is computed for one event.
func TestSettlementsPerEvent(t *testing.T) {
	b := newIdleBench(t, "t4x4")
	var settlements atomic.Int32
	b.fault = func(step string) error {
		if step == string(allocatable.StepSettle) {
			settlements.Add(1)
		}
		return nil
	}
	shared := func(replicas, policy string) string {
		return "standalone: true\nsharedDevicesAllocationPolicy: " + policy + "\ngpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: " + replicas + ", resourceName: nvidia.com/gpu.shared}}]\n"
	}
	b.configure(shared("2", "distributed"))
	b.agent = b.start()
	b.awaitOf("nvidia.com/gpu.shared", healthy(2))
	b.await(healthy(3))
	tests := []struct {
		event string
		do    func()
		want  int32
	}{
		{"an allocation of a whole GPU", func() {
			if _, err := b.kubelet.Allocate(t.Context(), resource, []string{string(b.uuid(0))}); err != nil {
				t.Fatal(err)
			}
		}, 0},
		{"an allocation of a replica", func() {
			if _, err := b.kubelet.Allocate(t.Context(), "nvidia.com/gpu.shared", []string{string(b.uuid(1)) + "::0"}); err != nil {
				t.Fatal(err)
			}
		}, 0},
		{"an edit of a sharing rule", func() {
			b.configure(shared("3", "distributed"))
			b.awaitOf("nvidia.com/gpu.shared", healthy(3))
		}, 1},
		{"an edit that does not concern the use", func() {
			b.configure(shared("3", "packed"))
			awaitTrue(t, "the new policy", func() bool { return b.agent.advertised().Policy == "packed" })
		}, 0},
	}
	for _, tc := range tests {
		settlements.Store(0)
		tc.do()
		time.Sleep(500 * time.Millisecond) // A settlement too many would come now.
		if got := settlements.Load(); got != tc.want {
			t.Errorf("%s: %d settlements, want %d", tc.event, got, tc.want)
		}
	}
}
