package dra

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCallRecorder: each call is in the buckets of all limits that it kept, and each failure under its reason.
func TestCallRecorder(t *testing.T) {
	var r CallRecorder
	if list := r.List(); len(list) > 0 {
		t.Errorf("without a call: %v", list)
	}
	r.Observe("unprepare", time.Minute, "")
	r.Observe("prepare", 5*time.Millisecond, "")
	r.Observe("prepare", 6*time.Millisecond, "held")
	r.Observe("prepare", time.Second, "canceled")
	r.Observe("prepare", time.Second, "canceled")
	list := r.List()
	want := map[float64]uint64{}
	for _, limit := range callLimits() {
		switch {
		case limit >= 1:
			want[limit] = 4
		case limit >= 0.01:
			want[limit] = 2
		case limit >= 0.005:
			want[limit] = 1
		default:
			want[limit] = 0
		}
	}
	prepare := Calls{Operation: "prepare", Count: 4, Seconds: 2.011, Buckets: want, Errors: []CallErrors{{"canceled", 2}, {"held", 1}}}
	if diff := cmp.Diff(prepare, list[0]); diff != "" {
		t.Errorf("prepare (-want +got):\n%s", diff)
	}
	if last := list[1]; last.Operation != "unprepare" || last.Count != 1 || len(last.Errors) > 0 || last.Buckets[45] != 0 || len(last.Buckets) != len(callLimits()) {
		t.Errorf("unprepare: %+v", last)
	}
	if !slices.IsSorted(callLimits()) {
		t.Errorf("the limits are %v", callLimits())
	}
}

// TestConcurrentCalls is for the race detector: what was returned does not change any more.
func TestConcurrentCalls(t *testing.T) {
	var r CallRecorder
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 100 {
				r.Observe("prepare", time.Second, "held")
				for _, one := range r.List() {
					one.Buckets[1]++
					one.Errors[0].Count++
				}
			}
		})
	}
	group.Wait()
	if one := r.List()[0]; one.Count != 400 || one.Buckets[1] != 400 || one.Errors[0].Count != 400 {
		t.Errorf("%+v", one)
	}
}
