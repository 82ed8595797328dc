package web

import (
	"context"
	"fmt"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestNodesGone: of 10,000 nodes that come and go, the measurements of few are kept.
func TestNodesGone(t *testing.T) {
	s := newSamples(testclock.NewFakeClock(time.Unix(1e9, 0)), func(context.Context, string) (*v1alpha1.GPUSamples, error) { return &v1alpha1.GPUSamples{}, nil })
	for round := range 10_000 / mostSampled {
		var names []string
		for i := range mostSampled {
			names = append(names, fmt.Sprintf("n-%d-%d", round, i))
		}
		if found, notes := s.of(t.Context(), names); len(found) != mostSampled || len(notes) > 0 {
			t.Fatalf("%d nodes, %v", len(found), notes)
		}
	}
	if most := 5 * mostSampled; len(s.nodes) > most {
		t.Errorf("%d nodes are kept; want at most %d", len(s.nodes), most)
	}
}
