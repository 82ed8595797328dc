package nvidia

import (
	"os"
	"path/filepath"
	"testing"
)

// TestProgram: the name of a process, which it chooses itself, cannot draw on a terminal.
func TestProgram(t *testing.T) {
	tests := map[string]struct{ comm, want string }{
		"a name":                    {"nv-hostengine\n", "nv-hostengine"},
		"of another language":       {"größe\n", "größe"},
		"ASCII control characters":  {"a\x1b[2Jb\nc\x7f\n", "a [2Jb c"},
		"C1 control characters":     {"a\u009b2Jb\n", "a 2Jb"},
		"another writing direction": {"a\u202eb\u200f\n", "ab"},
		"not UTF-8":                 {"a\xffb\ufffd\n", "ab"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "7"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, "7", "comm"), []byte(tc.comm), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := (&Actions{proc: proc}).program(7); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
