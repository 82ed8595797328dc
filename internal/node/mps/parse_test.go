package mps

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestWantedAsJSON checks the form that agents and supervisors of other versions read.
func TestWantedAsJSON(t *testing.T) {
	limits := gpu.MPSLimits{PinnedMemoryMiB: 1024, ActiveThreadPercentage: 25}
	want := `{"gpu":"GPU-a","index":1,"replicas":4,"pinnedMemoryMiB":1024,"activeThreadPercentage":25,"multiUser":true}`
	got, err := json.Marshal(Wanted{GPU: "GPU-a", Index: 1, Replicas: 4, Limits: LimitsOf(limits)})
	if err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	for _, single := range []bool{false, true} {
		limits.SingleUser = single
		if back := LimitsOf(limits).MPSLimits(); back != limits || LimitsOf(limits).MultiUser == single {
			t.Errorf("%+v is %+v, and back %+v", limits, LimitsOf(limits), back)
		}
	}
}

func TestParseMemory(t *testing.T) {
	type size struct {
		memory int64
		unit   int64
		ok     bool
	}
	for text, want := range map[string]size{
		"3G": {3072, 1024, true}, "1408M": {1408, 1, true}, "2g": {2048, 1024, true}, "2GB": {2048, 1024,
			true}, "1T": {1 << 20, 1 << 20, true},
		"5 G": {5120, 1024, true}, "0G": {0, 1024, true},
		"": {}, "G": {}, "-1M": {}, "no limit": {}, "99999999999999999999M": {}, "12": {}, "b": {},
	} {
		var got size
		if got.memory, got.unit, got.ok = parseMemory(text); got != want {
			t.Errorf("parseMemory(%q) = %+v, want %+v", text, got, want)
		}
	}
}

func TestParsePercentage(t *testing.T) {
	for text, want := range map[string]float64{"25.0": 25, "100": 100, "12.5%": 12.5, "0": 0, "": -1, "NaN": -1,
		"101": -1, "-1": -1, "Cannot find MPS control daemon process": -1} {
		got, err := parsePercentage(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("parsePercentage(%q) = %g, %v, want %g", text, got, err, want)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{"25.0", "3G", "1408M", "100\n200\n", "é\xff\x00", strings.Repeat("x\n", 1000)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parsePercentage(text); err == nil && (p < 0 || p > 100) {
			t.Errorf("percentage %g", p)
		}
		if m, unit, ok := parseMemory(text); ok && (m < 0 || unit < 1) {
			t.Errorf("memory %d in %d", m, unit)
		}
		for _, n := range numbers(text) {
			if n < 1 {
				t.Errorf("number %d", n)
			}
		}
		if s := shorten(text); len(s) > maxQuoted+3 || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\r\x00") {
			t.Errorf("shortened to %q", s)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (a) b) S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2 3")
	f.Add(") ")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseStat(text); err == nil && !strings.Contains(text, ")") {
			t.Errorf("parsed %+v", s)
		}
	})
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("1 (a) b) S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2 3")
	if want := (stat{parent: 7, start: 4711}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for text, want := range map[string]bool{
		"1 (a) Z 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1": true,
		"2 (k) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4 1":    true,
		"1 (a) S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1": false,
	} {
		if s, err := parseStat(text); err != nil || s.noEnvironment != want {
			t.Errorf("%q: noEnvironment %v, %v, want %v", text, s.noEnvironment, err, want)
		}
	}
	own, err := readStat(os.Getpid())
	if err != nil || own.parent != os.Getppid() {
		t.Errorf("own: %+v, %v", own, err)
	}
}

func FuzzWanted(f *testing.F) {
	f.Add(`{"wanted": [{"gpu": "GPU-1", "index": 0, "replicas": 1, "pinnedMemoryMiB": -1, "activeThreadPercentage": 1, "multiUser": true}]}`)
	f.Add(`{"wanted": [{"gpu": "GPU-/.."}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var r request
		if decode([]byte(text), &r) != nil {
			return
		}
		set, err := checked(r.Wanted)
		if err != nil {
			return
		}
		for i, w := range set {
			if rel, err := filepath.Rel("/root", PipeDir("/root", w.GPU)); err != nil || strings.Contains(rel,
				"..") || strings.Count(rel, "/") != 1 {
				t.Errorf("%q leaves the root", w.GPU)
			}
			if i > 0 && set[i-1].GPU >= w.GPU {
				t.Error("out of order")
			}
		}
	})
}

// TestLogsAreBounded: a log that grows too large is emptied; a link is left alone.
func TestLogsAreBounded(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	sizes := map[string]int64{daemonLog: maxLog + 1, "server.log": maxLog, outside: maxLog + 1}
	for name, size := range sizes {
		path := name
		if !filepath.IsAbs(name) {
			path = filepath.Join(dir, name)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "control.log")); err != nil {
		t.Fatal(err)
	}
	boundLogs(dir)
	for path, want := range map[string]int64{filepath.Join(dir, daemonLog): 0, filepath.Join(dir, "server.log"): maxLog,
		outside: maxLog + 1} {
		if info, err := os.Stat(path); err != nil || info.Size() != want {
			t.Errorf("%s has %d bytes, want %d", path, info.Size(), want)
		}
	}
}

func TestExecDaemonRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"/shm"}, {"/shm", "--"}, {"/shm", "x", "y"}, {"/shm", "--", "/nowhere/program"}} {
		if err := ExecDaemon(args); err == nil || !strings.HasPrefix(err.Error(), "start MPS daemon: ") {
			t.Errorf("ExecDaemon(%q): %v", args, err)
		}
	}
}
