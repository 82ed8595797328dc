package workload

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "file"), 0o640); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
	}{
		"ls":                  {[]string{"ls", dir}, 0, "file\n"},
		"cat":                 {[]string{"cat", filepath.Join(dir, "file")}, 0, "content"},
		"cat nothing":         {[]string{"cat", filepath.Join(dir, "none")}, 1, ""},
		"open":                {[]string{"open", filepath.Join(dir, "file")}, 0, "OK\n"},
		"open nothing":        {[]string{"open", filepath.Join(dir, "none")}, 0, "ENOENT\n"},
		"stat file":           {[]string{"stat", filepath.Join(dir, "file")}, 0, "file 0640\n"},
		"devices of none":     {[]string{"devices", dir}, 0, "[]\n"},
		"exit":                {[]string{"exit", "7"}, 7, ""},
		"exit with no number": {[]string{"exit", "x"}, 2, ""},
		"sleep":               {[]string{"sleep", "1ms"}, 0, ""},
		"sleep nonsense":      {[]string{"sleep", "x"}, 2, ""},
		"too few":             {[]string{"mknod", "/x"}, 2, ""},
		"unknown":             {[]string{"dance"}, 2, ""},
		"nothing":             {nil, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			if code := Run(c.args, &out, &errOut); code != c.code || out.String() != c.out {
				t.Errorf("want code %d and %q, got code %d and %q (%s)", c.code, c.out, code, out.String(), errOut.String())
			}
		})
	}
}

func TestEnvIsSorted(t *testing.T) {
	t.Setenv("ZZZ", "1")
	t.Setenv("AAA", "1")
	var out bytes.Buffer
	Run([]string{"env"}, &out, &out)
	if a, z := strings.Index(out.String(), "AAA=1"), strings.Index(out.String(), "ZZZ=1"); a < 0 || z < a {
		t.Errorf("want AAA before ZZZ, got:\n%s", out.String())
	}
}
