package agent

import (
	"testing"
	"time"
)

// TestMIGWantsPerEvent counts how often the wanted MIG layouts are computed for one event.
func TestMIGWantsPerEvent(t *testing.T) {
	b := newIdleBench(t, "a100x8-40g")
	shared := func(replicas string) string {
		return "standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: " + replicas + ", resourceName: nvidia.com/gpu.shared}}]\n"
	}
	b.configure(shared("2"))
	b.agent = b.start()
	b.awaitOf("nvidia.com/gpu.shared", healthy(2))
	b.await(healthy(7))
	tests := []struct {
		event string
		do    func()
		want  int64
	}{
		{"an allocation", func() {
			if _, err := b.kubelet.Allocate(t.Context(), resource, []string{string(b.uuid(0))}); err != nil {
				t.Fatal(err)
			}
		}, 0},
		{"an edit of one rule", func() {
			b.configure(shared("3"))
			b.awaitOf("nvidia.com/gpu.shared", healthy(3))
		}, 1},
	}
	for _, tc := range tests {
		before := b.agent.changes.mig.Computed()
		tc.do()
		time.Sleep(500 * time.Millisecond) // A computation too many would come now.
		if got := b.agent.changes.mig.Computed() - before; got != tc.want {
			t.Errorf("%s: the wanted MIG layouts were computed %d times, want %d", tc.event, got, tc.want)
		}
	}
}
