package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSetOOMScore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ before, want string }{
		"a pod without requests": {"999\n", "-997"},
		"system-node-critical":   {"-997\n", "-997\n"},
		"never":                  {"-1000\n", "-1000\n"},
		"none":                   {"0\n", "-997"},
		"damaged":                {"x", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "oom_score_adj")
			if err := os.WriteFile(file, []byte(tc.before), 0o600); err != nil {
				t.Fatal(err)
			}
			err := setOOMScore(file)
			if got, _ := os.ReadFile(file); string(got) != tc.want || (err != nil) != (name == "damaged") {
				t.Errorf("it is %q after %v, want %q", got, err, tc.want)
			}
		})
	}
	if err := setOOMScore(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("no error without the file")
	}
}
