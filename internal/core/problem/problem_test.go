package problem_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/core/problem"
)

func TestFind(t *testing.T) {
	tests := map[string]struct {
		code  string
		title string
		ok    bool
	}{
		"level":             {"GPU_LOST", "a GPU does not answer", true},
		"XID":               {"XID79", "the driver reported XID 79: " + health.LookupXID(79).Meaning, true},
		"the pattern":       {"XIDn", "the driver reported XIDn", true},
		"XID and no number": {"XIDs", "", false},
		"unknown":           {"GPU_BORED", "", false},
		"empty":             {"", "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := problem.Find(tc.code)
			if ok != tc.ok || got.Title != tc.title || ok && got.Code != tc.code {
				t.Errorf("Find(%q) = %s, %q, %v; want %q, %v", tc.code, got.Code, got.Title, ok, tc.title, tc.ok)
			}
		})
	}
}

// TestEntriesAreComplete checks that no field is empty, that no code occurs twice, and that the texts have one form.
func TestEntriesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range problem.All() {
		if seen[p.Code] {
			t.Errorf("%s occurs twice", p.Code)
		}
		seen[p.Code] = true
		if !slices.Contains([]problem.Severity{problem.Info, problem.Warning, problem.Error}, p.Severity) {
			t.Errorf("%s has severity %q", p.Code, p.Severity)
		}
		if !slices.Contains(problem.Areas(), p.Area) {
			t.Errorf("%s has area %q", p.Code, p.Area)
		}
		if p.Title == "" || p.Seen == "" || strings.HasSuffix(p.Title, ".") || len(p.Title) > 80 {
			t.Errorf("%s: title %q, seen in %q; want a title of at most 80 characters without a full stop", p.Code, p.Title, p.Seen)
		}
		for what, text := range map[string]string{"meaning": p.Meaning, "fix": p.Fix} {
			if !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %s %q is not a sentence", p.Code, what, text)
			}
		}
	}
}

// TestXIDsByClass checks that severity and fix of an XID follow from its class.
func TestXIDsByClass(t *testing.T) {
	want := map[health.Class]problem.Severity{health.Ignore: problem.Info, health.Degrade: problem.Warning}
	fixes := map[string]health.Class{}
	for _, x := range health.XIDs() {
		p, ok := problem.Find(health.XIDCode(x.Code))
		severity := problem.Error
		if s, ok := want[x.Class]; ok {
			severity = s
		}
		if !ok || p.Severity != severity {
			t.Errorf("XID %d of class %s has severity %q, want %q", x.Code, x.Class, p.Severity, severity)
		}
		if class, seen := fixes[p.Fix]; seen && class != x.Class {
			t.Errorf("XIDs of the classes %s and %s have one fix", class, x.Class)
		}
		fixes[p.Fix] = x.Class
	}
	if len(fixes) < 5 {
		t.Errorf("only %d kinds of fixes", len(fixes))
	}
}
