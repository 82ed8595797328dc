package spelling

import (
	"testing"

	"pgregory.net/rapid"
)

// twin is the definition, without a table.
func twin(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	if a[0] == b[0] {
		return twin(a[1:], b[1:])
	}
	return 1 + min(twin(a[1:], b), twin(a, b[1:]), twin(a[1:], b[1:]))
}

func TestDistanceAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[abc]{0,6}`)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		if got, want := Distance(a, b), twin(a, b); got != want {
			t.Errorf("Distance(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

func TestNearest(t *testing.T) {
	names := []string{"resourceName", "driverRoot", "devRoot", "cdi-cri"}
	tests := map[string]struct{ typed, want string }{
		"a letter is missing": {"resourceNam", "resourceName"},
		"other case":          {"RESOURCENAME", "resourceName"},
		"two letters more":    {"cdi-criio", "cdi-cri"},
		"nothing like it":     {"zzzzzzzz", ""},
		"the nearer of two":   {"dvRoot", "devRoot"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Nearest(tc.typed, names); got != tc.want {
				t.Errorf("Nearest(%q) = %q, want %q", tc.typed, got, tc.want)
			}
		})
	}
}
