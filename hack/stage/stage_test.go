package stage

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is tested by the real go command, so that the events are those of this Go version.
var module = map[string]string{
	"go.mod":         "module example.com/m\n\ngo 1.26\n",
	"good/a_test.go": "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {\n\tt.Run(\"Deep\", func(t *testing.T) { t.Log(\"[rapid] OK, passed 100 tests (1ms)\") })\n\tt.Log(\"[walks] 20 sequences\")\n}\nfunc TestOther(t *testing.T) {}\n",
	"skip/a_test.go": "package skip\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Skip(\"no machine\") }\n",
	"sub/a_test.go":  "package sub\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Skip() }) }\n",
	"fail/a_test.go": "package fail\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Error(\"two is not three\") }\n",
	"dies/a_test.go": "package dies\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestGood(t *testing.T) { println(\"last words\"); os.Exit(3) }\n",
	"deep/a_test.go": "package deep\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {\n\tt.Run(\"A\", func(t *testing.T) {})\n\tt.Run(\"B\", func(t *testing.T) {\n\t\tt.Log(\"starts\")\n\t\tt.Log(\"goes on\")\n\t\tt.Error(\"waited 5 s for a pod\")\n\t\tt.Log(\"the end of /logs/kubelet.log:\\nfine\")\n\t})\n}\n",
	"bad/a_test.go":  "package bad\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { undefined() }\n",
	"none/a.go":      "package none\n",
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range module {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		packages string
		pattern  string
		want     string // of the summary
		err      string // empty: none
		prints   string
		failures []string
	}{
		"all":                   {packages: "./good", pattern: ".", want: "1 packages, 2 tests with 1 subtests, 120 random walks"},
		"one":                   {packages: "./good", pattern: "Good", want: "1 packages, 1 tests with 1 subtests, 120 random walks"},
		"a subtest":             {packages: "./good", pattern: "Good/Deep", want: "1 packages, 1 tests with 1 subtests, 120 random walks"},
		"no subtest":            {packages: "./good", pattern: "Good/Deeper", err: "no test ran in example.com/m/good"},
		"no test":               {packages: "./good", pattern: "Misspelt", err: `the pattern "Misspelt" matches none there`},
		"no test in one of two": {packages: "./good ./skip", pattern: "Other", err: "no test ran in example.com/m/skip"},
		"skipped":               {packages: "./skip", pattern: "Good", want: "1 packages, 0 tests, 1 skipped", err: "no test ran in example.com/m/skip"},
		"all subtests skipped":  {packages: "./sub", pattern: "Good", err: "no test ran in example.com/m/sub"},
		"any pattern, no test":  {packages: "./none ./good", want: "2 packages, 2 tests with 1 subtests, 120 random walks"},
		"no test files":         {packages: "./none", pattern: "Good", err: "no test ran in example.com/m/none"},
		"fails": {packages: "./fail ./good", pattern: "Good", err: "tests failed", prints: "two is not three",
			failures: []string{"example.com/m/fail TestGood", "    a_test.go:5: two is not three"}},
		"a subtest fails": {packages: "./deep", pattern: "Good", err: "tests failed", prints: "the end of /logs",
			failures: []string{"example.com/m/deep TestGood/B", "    a_test.go:9: goes on", "    a_test.go:10: waited 5 s for a pod"}},
		"the test program dies": {packages: "./dies", pattern: "Good", err: "tests failed", prints: "last words",
			failures: []string{"example.com/m/dies TestGood did not end", "    === RUN   TestGood", "    last words"}},
		"does not compile": {packages: "./bad", pattern: "Good", err: "tests failed", prints: "undefined: undefined",
			failures: []string{"example.com/m/bad", "    FAIL\texample.com/m/bad [build failed]"}},
		"no such package":          {packages: "./nowhere", pattern: "Good", err: "tests failed", prints: "nowhere"},
		"alternatives and subtest": {packages: "./good", pattern: "Other|Good/Deep", want: "1 packages, 2 tests with 1 subtests, 120 random walks"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := exec.Command("go", append([]string{"test", "-json", "-count=1", "-run", tc.pattern}, strings.Fields(tc.packages)...)...)
			command.Dir = dir
			command.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
			events, _ := command.Output() // go's own exit code is the caller's matter
			var out bytes.Buffer
			summary, err := Read(bytes.NewReader(events), &out, Options{Pattern: tc.pattern})
			switch {
			case tc.err == "" && err != nil, tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error %v, want %q", err, tc.err)
			case tc.want != "" && summary.String() != tc.want:
				t.Errorf("summary %q, want %q", summary, tc.want)
			case tc.failures != nil && !slices.Equal(summary.Failures, tc.failures):
				t.Errorf("failures %q, want %q", summary.Failures, tc.failures)
			case !strings.Contains(out.String(), tc.prints):
				t.Errorf("printed %q, want %q in it", out.String(), tc.prints)
			}
		})
	}
}
