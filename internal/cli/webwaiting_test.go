package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestWaitReasons follows when reasons are evaluated: at once for the first ones, a second later for pods that are new, and again when they
// are old; by one evaluation at a time.
func TestWaitReasons(t *testing.T) {
	start := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	var w waitReasons
	pods := func(names string) (list []v1alpha1.BoardWaiting) {
		for name := range strings.FieldsSeq(names) {
			list = append(list, v1alpha1.BoardWaiting{Namespace: "ml", Pod: name})
		}
		return list
	}
	end := func(at time.Duration, names string) {
		reasons := map[string]*v1alpha1.Why{}
		for name := range strings.FieldsSeq(names) {
			reasons["ml/"+name] = &v1alpha1.Why{Sentence: name}
		}
		w.end(start.Add(at), reasons)
	}
	for _, step := range []struct {
		what  string
		at    time.Duration
		pods  string
		due   bool
		known string // with the time of the oldest
	}{
		{"no pods", 0, "", false, ""},
		{"the first ones", 0, "a b", true, ""},
		{"while these are evaluated", 0, "a b", false, ""},
		{"evaluated", 2 * time.Second, "a b", false, "a b 2s"},
		{"a new one, at once", 2 * time.Second, "a c", false, "a 2s"},
		{"a new one, a second later", 3 * time.Second, "a c", true, "a 2s"},
		{"both evaluated", 4 * time.Second, "b c", false, "b c 2s"},
		{"before they are old", 6999 * time.Millisecond, "b", false, "b 2s"},
		{"one is old", 7 * time.Second, "b", true, "b 2s"},
		{"only that was evaluated again", 8 * time.Second, "b", false, "b 8s"},
		{"the others are forgotten with the next evaluation", 70 * time.Second, "b", true, "b 8s"},
		{"which they were", 70 * time.Second, "a b c", false, "b 1m10s"},
	} {
		switch step.what { // What ended before the step.
		case "evaluated":
			end(step.at, "a b")
		case "both evaluated":
			end(step.at, "a c")
		case "only that was evaluated again", "which they were":
			end(step.at, "b")
		}
		if _, due := w.begin(start.Add(step.at), pods(step.pods)); due != step.due {
			t.Errorf("%s: evaluated: %v", step.what, due)
		}
		found := w.of(pods(step.pods))
		var known []string
		for key := range found.Pods {
			known = append(known, strings.TrimPrefix(key, "ml/"))
		}
		slices.Sort(known)
		if len(known) > 0 {
			known = append(known, fmt.Sprint(found.Time.Sub(start)))
		}
		if got := strings.Join(known, " "); got != step.known {
			t.Errorf("%s: got %q, want %q", step.what, got, step.known)
		}
	}
}

// TestWaitReasonsGone: of 10,000 pods that wait one after another, only the reasons of the last minute are kept.
func TestWaitReasonsGone(t *testing.T) {
	now := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	var w waitReasons
	for i := range 10_000 {
		w.end(now, map[string]*v1alpha1.Why{fmt.Sprint("ml/pod-", i): {}})
		now = now.Add(time.Second)
	}
	if len(w.known) > int(keepReasons/time.Second)+1 {
		t.Errorf("%d reasons are kept", len(w.known))
	}
}
