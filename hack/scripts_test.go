// Package hack has the scripts behind the Makefile, and their tests.
package hack

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// machine is a fake machine for the scripts: the only programs on its PATH are fakes and the basic tools in basics.
type machine struct {
	Installed    bool     // runc, ip, chromium and the CNI plugins are there from the start
	CannotFetch  bool     // apt-get fails
	NoPackages   bool     // no apt-get: not Debian
	NotRoot      bool     //
	Env          []string // in addition to PATH and HOME
	EmptyInstall bool     // apt-get succeeds but brings nothing
	Go           string   // what the fake go does; by default nothing
	Fails        string   // the job that fails
	Git          string   // what the fake git does; without it there is no git
	Soak         string   // a row of docs/soak.md
}

// basics are the real programs that the scripts may use.
var basics = []string{"bash", "env", "sed", "grep", "awk", "dirname", "mktemp", "tail", "tr", "rm", "mkdir", "cat", "date", "df", "nproc", "head", "sleep", "mv", "seq", "setsid"}

// jobs are the scripts that do long work; on a fake machine they only record their call.
var jobs = []string{"build.sh", "checks.sh", "unit.sh", "fuzz.sh", "e2e.sh", "demo.sh", "stop.sh"}

// run runs a script of this folder on the machine. It returns stdout and stderr separately; calls are the jobs that the
// script started, in order.
func (m machine) run(t *testing.T, script string) (stdout, stderr string, code int, calls []string) {
	t.Helper()
	root := t.TempDir()
	bin, scripts := filepath.Join(root, "bin"), filepath.Join(root, "hack")
	for _, dir := range []string{bin, scripts, filepath.Join(root, "cni"), filepath.Join(root, "docs")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path string, lines ...string) {
		text := "#!/usr/bin/env bash\n" + strings.Join(lines, "\n") + "\n"
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "docs", "soak.md"), []byte(m.Soak+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range basics {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("this machine has no %s", name)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("*.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		blob, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(file); name != script && slices.Contains(jobs, name) {
			write(filepath.Join(scripts, name), `echo "`+name+` $*" >>"`+root+`/calls"`, `echo "`+name+` says this"`,
				`[ "`+name+`" != "`+m.Fails+`" ] || { printf '%s\n' "`+name+`: 1 tests: FAILED: tests failed" "  TestX" "      waited 5 s" >>"${stage_report:-/dev/null}"; false; }`)
			continue
		}
		if err := os.WriteFile(filepath.Join(scripts, file), blob, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	id := "0"
	if m.NotRoot {
		id = "1000"
	}
	install := `for p in runc ip chromium jq python3; do printf '#!/bin/sh\n' >"` + bin + `/$p"; ` + filepathChmod + ` +x "` + bin + `/$p"; done; for p in bridge host-local loopback; do : >"` + root + `/cni/$p"; done; : >"` + root + `/installed"`
	write(filepath.Join(bin, "id"), "echo "+id)
	write(filepath.Join(bin, "uname"), "echo Linux")
	write(filepath.Join(bin, "gcc"), `while [ $# != 0 ]; do [ "$1" != -o ] || : >"$2"; shift; done`)
	write(filepath.Join(bin, "go"), m.Go, `[ "$1" != env ] || echo go1.26.8`, `[ "$1" = env ] || echo "go $*" >>"`+root+`/calls"`)
	for _, program := range []string{"berth", "berth-agent", "berth-images", "berth-sandbox"} {
		write(filepath.Join(bin, program), `echo "`+program+` $1" >>"`+root+`/calls"`)
	}
	if m.Git != "" {
		write(filepath.Join(bin, "git"), m.Git)
	}
	write(filepath.Join(bin, "dpkg-query"), `[ -e "`+root+`/installed" ] && echo "install ok installed"`)
	if !m.NoPackages {
		switch {
		case m.CannotFetch:
			write(filepath.Join(bin, "apt-get"), `echo "E: Unable to fetch some archives"`, "exit 100")
		case m.EmptyInstall:
			write(filepath.Join(bin, "apt-get"), `: >"`+root+`/installed"`)
		default:
			write(filepath.Join(bin, "apt-get"), `echo "Setting up runc"`, install)
		}
	}
	if m.Installed {
		setup := filepath.Join(root, "setup")
		write(setup, install)
		if out, err := exec.Command("bash", setup).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}

	command := exec.Command("bash", filepath.Join(scripts, script))
	command.Env = append([]string{"PATH=" + bin, "HOME=" + root, "TMPDIR=" + root, "BIN=" + bin, "SANDBOX=" + root + "/sandbox", "PROFILE=a100x8-40g",
		"RUN=.", "CNI_DIRS=" + root + "/cni"}, m.Env...)
	var out bytes.Buffer
	errOut, err := os.Create(filepath.Join(root, "stderr")) // where the fake go can read it
	if err != nil {
		t.Fatal(err)
	}
	defer errOut.Close()
	command.Stdout, command.Stderr = &out, errOut
	err = command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	said, err := os.ReadFile(errOut.Name())
	if err != nil {
		t.Fatal(err)
	}
	blob, _ := os.ReadFile(filepath.Join(root, "calls"))
	for line := range strings.Lines(string(blob)) {
		calls = append(calls, strings.TrimSpace(line))
	}
	return out.String(), string(said), command.ProcessState.ExitCode(), calls
}

// filepathChmod is the real chmod, which is not on the fake PATH.
const filepathChmod = "/bin/chmod"

// TestScriptsOnMachines runs the scripts that need a sandbox on machines of each kind. A
// stage that does not run must say why, and must never be a success in CI.
func TestScriptsOnMachines(t *testing.T) {
	tests := map[string]struct {
		machine machine
		script  string
		runs    bool   // the part that needs the sandbox ran
		code    int    //
		says    string // in the output
	}{
		"test, installed":                      {machine{Installed: true}, "test.sh", true, 0, "all tests passed"},
		"test, installable":                    {machine{}, "test.sh", true, 0, "installing"},
		"test, installable, in CI":             {machine{Env: []string{"CI=true"}}, "test.sh", true, 0, "all tests passed"},
		"test, not installable":                {machine{CannotFetch: true}, "test.sh", false, 0, "could not install"},
		"test, not installable, in CI":         {machine{CannotFetch: true, Env: []string{"CI=true"}}, "test.sh", false, 2, "Unable to fetch some archives"},
		"test, install brings nothing, in CI":  {machine{EmptyInstall: true, Env: []string{"CI=true"}}, "test.sh", false, 2, "runc"},
		"test, not root":                       {machine{Installed: true, NotRoot: true}, "test.sh", false, 0, "not root"},
		"test, not root, in CI":                {machine{Installed: true, NotRoot: true, Env: []string{"CI=true"}}, "test.sh", false, 2, "not root"},
		"test, not root, missing":              {machine{NotRoot: true}, "test.sh", false, 0, "apt-get install"},
		"test, not Debian, installed":          {machine{Installed: true, NoPackages: true}, "test.sh", true, 0, "all tests passed"},
		"test, not Debian, missing, and in CI": {machine{NoPackages: true, Env: []string{"CI=true"}}, "test.sh", false, 2, "runc"},
		"demo, installed":                      {machine{Installed: true}, "demo.sh", true, 0, ""},
		"demo, installable":                    {machine{}, "demo.sh", true, 0, "installing"},
		"demo, not installable":                {machine{CannotFetch: true}, "demo.sh", false, 2, "could not install"},
		"demo, not root":                       {machine{Installed: true, NotRoot: true}, "demo.sh", false, 2, "sudo make demo"},
		"e2e, installable":                     {machine{}, "e2e.sh", true, 0, "installing"},
		"e2e, not installable":                 {machine{CannotFetch: true}, "e2e.sh", false, 2, "could not install"},
		"soak, installable":                    {machine{Git: soakCommit}, "soak.sh", true, 0, "installing"},
		"soak, not installable":                {machine{Git: soakCommit, CannotFetch: true}, "soak.sh", false, 2, "could not install"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code, calls := tc.machine.run(t, tc.script)
			mark := map[string]string{"test.sh": "e2e.sh", "demo.sh": "berth-sandbox run", "e2e.sh": "berth-sandbox up", "soak.sh": "build.sh sandbox"}[tc.script]
			if ran := slices.Contains(calls, mark); ran != tc.runs || code != tc.code || !strings.Contains(stdout+stderr, tc.says) {
				t.Errorf("sandbox used: %v, want %v; exit code %d, want %d; output must contain %q\ncalls: %q\nstdout:\n%s\nstderr:\n%s",
					ran, tc.runs, code, tc.code, tc.says, calls, stdout, stderr)
			}
		})
	}
}

// soakCommit is a Git whose tree has no changes.
const soakCommit = `[ "$1" != log ] || echo c0ffee`

// TestSoakGoesOn checks that a soak runs what has not passed at its commit, also after a failure.
func TestSoakGoesOn(t *testing.T) {
	row := func(commit string) string {
		return "| 200 pods, 8 at a time, with 50 restarts of the agent | `" + commit + "` | 2026-11-29 | 1 | 9 s | 1 packages, 1 tests |"
	}
	tests := map[string]struct {
		machine machine
		ran     bool // TestChurn
		code    int
		says    string
	}{
		"nothing has passed":     {machine{Installed: true, Git: soakCommit}, true, 0, "25 stages have passed at commit c0ffee, 0 failed"},
		"passed":                 {machine{Installed: true, Git: soakCommit, Soak: row("c0ffee")}, false, 0, "25 stages have passed at commit c0ffee, 0 failed"},
		"passed at another":      {machine{Installed: true, Git: soakCommit, Soak: row("decaf")}, true, 0, "25 stages have passed at commit c0ffee, 0 failed"},
		"one fails":              {machine{Installed: true, Git: soakCommit, Go: `case "$*" in *TestChurn*) exit 3 ;; esac`}, true, 1, "24 stages have passed at commit c0ffee, 1 failed"},
		"the tree has a change":  {machine{Installed: true, Git: "echo ' M README.md'"}, false, 2, "commit or stash first"},
		"the tree is not Git's":  {machine{Installed: true, Git: "exit 128"}, false, 2, "not a Git tree"},
		"fuzzing fails, goes on": {machine{Installed: true, Git: soakCommit, Fails: "fuzz.sh"}, true, 1, "failed: each fuzz target for a minute"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code, calls := tc.machine.run(t, "soak.sh")
			ran := slices.ContainsFunc(calls, func(call string) bool { return strings.Contains(call, "^TestChurn$ ./test/e2e") })
			if ran != tc.ran && tc.machine.Go == "" || code != tc.code || !strings.Contains(stdout+stderr, tc.says) {
				t.Errorf("TestChurn ran: %v, want %v; exit code %d, want %d; output must contain %q\n%s%s", ran, tc.ran, code, tc.code, tc.says, stdout, stderr)
			}
		})
	}
}

// TestPushAndRelease checks what is published, under which tag, and what is refused before anything is built.
func TestPushAndRelease(t *testing.T) {
	tests := map[string]struct {
		machine machine
		script  string
		code    int
		says    string // in the output
		calls   []string
	}{
		"no registry": {machine{}, "push.sh", 2, "make push REGISTRY=registry.example.com/berth", nil},
		"push": {machine{Env: []string{"REGISTRY=localhost:5000"}, Git: "echo v0.1.0"}, "push.sh", 0, "",
			[]string{"build.sh", "build.sh scheduler", "build.sh images --tag v0.1.0", "berth-images push"}},
		"push, no Git": {machine{Env: []string{"REGISTRY=localhost:5000"}}, "push.sh", 0, "",
			[]string{"build.sh", "build.sh scheduler", "build.sh images --tag devel", "berth-images push"}},
		"push, tag":                     {machine{Env: []string{"REGISTRY=localhost:5000", "TAG=test"}}, "push.sh", 0, "", []string{"build.sh", "build.sh scheduler", "build.sh images --tag test", "berth-images push"}},
		"images":                        {machine{}, "images.sh", 0, "", []string{"build.sh", "build.sh scheduler", "build.sh images --tag dev"}},
		"release of a changed tree":     {machine{Git: "echo ' M README.md'"}, "release.sh", 2, "M README.md", nil},
		"release outside of a Git tree": {machine{Git: "exit 128"}, "release.sh", 2, "not a Git tree", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code, calls := tc.machine.run(t, tc.script)
			for i := range calls {
				calls[i] = strings.TrimSpace(calls[i])
			}
			if code != tc.code || !strings.Contains(stdout+stderr, tc.says) || !slices.Equal(calls, tc.calls) {
				t.Errorf("exit code %d, want %d; calls %q, want %q; output must contain %q\nstdout:\n%s\nstderr:\n%s",
					code, tc.code, calls, tc.calls, tc.says, stdout, stderr)
			}
		})
	}
}

// TestStagesAreTimed checks that the tests print how long each stage took, also when one fails, that a failed stage fails the whole run but
// does not keep the others from running, and that the last 20 lines say what failed.
func TestStagesAreTimed(t *testing.T) {
	tests := map[string]struct {
		fails string // a job
		want  string // the lines after the first, without their seconds
		code  int
	}{
		"passes":                      {"", "build, unit tests, demo, end to end, checks, after the end-to-end tests, in all", 0},
		"the build fails":             {"build.sh", "build: failed, in all", 1},
		"the demo fails":              {"demo.sh", "build, unit tests, demo: failed, in all", 1},
		"a unit test fails":           {"unit.sh", "build, unit tests: failed, demo, end to end, checks, after the end-to-end tests, in all", 1},
		"a check fails":               {"checks.sh", "build, unit tests, demo, end to end, checks, after the end-to-end tests: failed, in all", 1},
		"a test of the cluster fails": {"e2e.sh", "build, unit tests, demo, end to end: failed, checks, after the end-to-end tests, in all", 1},
	}
	row := regexp.MustCompile(`(?m)^ +\d+ s  (.*)$`)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := machine{Installed: true, Fails: tc.fails}
			_, stderr, code, calls := m.run(t, "test.sh")
			var got []string
			for _, line := range row.FindAllStringSubmatch(stderr, -1) {
				got = append(got, line[1])
			}
			if strings.Join(got, ", ") != tc.want || code != tc.code || strings.Contains(tc.want, "end to end") != slices.Contains(calls, "e2e.sh") {
				t.Errorf("stages %q, want %q; exit code %d, want %d; calls %q\n%s", got, tc.want, code, tc.code, calls, stderr)
			}
			if tc.fails == "checks.sh" && !strings.Contains(stderr, "checks.sh says this") {
				t.Errorf("what the linters say is not in\n%s", stderr)
			}
			lines := strings.Split(stderr, "\n")
			last := strings.Join(lines[max(0, len(lines)-20):], "\n")
			said := strings.Contains(last, "FAILED: ") && strings.Contains(last, tc.fails+": 1 tests: FAILED: tests failed\n  TestX\n      waited 5 s\n")
			if said != (tc.code != 0) {
				t.Errorf("the last lines are\n%s", last)
			}
		})
	}
}

var (
	stageLine = regexp.MustCompile(`(?m)^(?:tests|walks) .* -run '([^']+)'(.*)$`)
	testName  = regexp.MustCompile(`(?m)^func (Test\w*)\(`)
)

// TestStagesSelectTests checks that the pattern of each stage of soak.sh matches a test in
// each package that the stage names, without running it.
func TestStagesSelectTests(t *testing.T) {
	blob, err := os.ReadFile("soak.sh")
	if err != nil {
		t.Fatal(err)
	}
	stages := stageLine.FindAllStringSubmatch(string(blob), -1)
	if called := len(regexp.MustCompile(`(?m)^(tests|walks) `).FindAll(blob, -1)); len(stages) != called || called == 0 {
		t.Fatalf("soak.sh has %d stages of which %d have the form NAME ... -run 'PATTERN' PACKAGES", called, len(stages))
	}
	for _, stage := range stages {
		module := ".."
		if strings.Contains(stage[0], "-C kube") {
			module = "../kube"
		}
		for field := range strings.FieldsSeq(stage[2]) {
			if !strings.HasPrefix(field, "./") {
				continue
			}
			found := false
			for alternative := range strings.SplitSeq(stage[1], "|") {
				top, _, _ := strings.Cut(alternative, "/")
				found = found || matches(t, filepath.Join(module, field), regexp.MustCompile(top))
			}
			if !found {
				t.Errorf("no test of %s matches %s", field, stage[1])
			}
		}
	}
}

// TestModulesComeFirst checks that the module of a stage comes before its other arguments, as go test wants it.
func TestModulesComeFirst(t *testing.T) {
	files, err := filepath.Glob("*.sh")
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`\b(?:stage|unit|tests) "[^"]*" (?:-v )?(.*)`)
	found := 0
	for _, file := range files {
		blob, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range call.FindAllStringSubmatch(string(blob), -1) {
			if strings.Contains(" "+match[1], " -C ") {
				found++
				if !strings.HasPrefix(match[1], "-C ") {
					t.Errorf("%s: %s", file, match[0])
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d stages of other modules found", found)
	}
}

// matches reports whether a top-level test of a folder has a name that the pattern matches.
func matches(t *testing.T, dir string, pattern *regexp.Regexp) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		blob, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testName.FindAllStringSubmatch(string(blob), -1) {
			if pattern.MatchString(name[1]) {
				return true
			}
		}
	}
	return false
}

// TestBuildShowsProgress runs a build of four packages, of which one is in the cache and one is
// ten times as large as the others.
func TestBuildShowsProgress(t *testing.T) {
	// Each package is compiled when the progress of the one before has been printed.
	const goProgram = `until_said() { for i in $(seq 200); do ! grep -q "built, $1" "$HOME/stderr" || return 0; sleep 0.1; done; }
case "$1" in
list) printf '%s\n' 'm/cached 50 ' 'm/a 10 1' 'm/b 10 1' 'm/large 100 1'; exit ;;
build)
	case "$*" in *cmd/berth-operator) ;; *) exit ;; esac
	[ -z "$BUILD_FAILS" ] || { echo 'm/a.go:1: it is wrong' >&2; exit 1; }
	printf 'go: downloading m v1\nm/a\n' >&2
	until_said '1 of 3'; printf 'm/b\n' >&2
	until_said '2 of 3'; printf '# m/b\nwarning: look here\nm/large\n' >&2
	until_said 'all 3'; exit ;;
esac`
	m := machine{Installed: true, Go: goProgram, Env: []string{"PROGRESS_AFTER=0.1", "PROGRESS_EVERY=0.1"}}
	_, stderr, code, _ := m.run(t, "build.sh")
	for _, want := range []string{"0 of 6 programs built, 1 of 3 packages compiled, ", "0 of 6 programs built, 2 of 3 packages compiled, about ", "0 of 6 programs built, all 3 packages", "warning: look here"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in\n%s", want, stderr)
		}
	}
	for _, not := range []string{"downloading m v1", "m/large\n"} {
		if strings.Contains(stderr, not) {
			t.Errorf("%q in\n%s", not, stderr)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	m.Env = []string{"BUILD_FAILS=1"}
	if _, stderr, code, _ = m.run(t, "build.sh"); code != 2 || !strings.Contains(stderr, "error: berth berth-agent berth-operator does not build") || !strings.Contains(stderr, "it is wrong") {
		t.Errorf("a build that fails: exit code %d\n%s", code, stderr)
	}
}
