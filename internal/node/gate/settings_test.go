package gate

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestSettingsFile(t *testing.T) {
	defaults := v1alpha1.Gate{Mode: v1alpha1.GateEnforce, TaintKey: "berth.dev/not-validated", Timeout: metav1.Duration{Duration: 10 * time.Minute}, OnTimeout: v1alpha1.GateHold}
	set := v1alpha1.Gate{Mode: v1alpha1.GateReport, TaintKey: "example.com/x", Timeout: metav1.Duration{Duration: time.Minute}, OnTimeout: v1alpha1.GateOpen}
	const text = "version: v1\nnew: {of: a later release}\ngate: {mode: report, taintKey: example.com/x, timeout: 1m0s, onTimeout: open}\n"
	steps := []struct {
		text string
		want v1alpha1.Gate
		code string
	}{
		{"{", defaults, "GATE_SETTINGS"}, {"", defaults, "GATE_SETTINGS"}, {text, set, ""}, {"gate: [1]\n", set, "GATE_SETTINGS"}, {text, set, ""}, {"", set, "GATE_SETTINGS"},
		{"# nothing\n---\n", set, "GATE_SETTINGS"}, {text, set, ""}, {"version: v1\n", defaults, ""},
	}
	code := ""
	path := filepath.Join(t.TempDir(), "stack.yaml")
	s := NewSettingsFile(path, true, testingclock.NewFakeClock(time.Now()), func(_ string, problems ...gpu.Cause) {
		if code = ""; len(problems) > 0 {
			code = problems[0].Code
		}
	})
	if got := s.Settings(); got != defaults || code != "GATE_SETTINGS" {
		t.Errorf("without the file: %+v, problem %q", got, code)
	}
	for i, step := range steps {
		if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := s.Settings(); got != step.want || code != step.code {
			t.Errorf("step %d: %+v, problem %q, want %+v and %q", i, got, code, step.want, step.code)
		}
	}
	for _, off := range []*SettingsFile{NewSettingsFile("", true, nil, nil), NewSettingsFile(path, false, nil, nil)} {
		if got := off.Settings(); got.Mode != v1alpha1.GateDisabled {
			t.Errorf("settings %+v, want the gate off", got)
		}
	}
}

// editor is a clock that writes the next part of a file in each wait.
type editor struct {
	*testingclock.FakeClock
	write func()
}

func (e *editor) Sleep(time.Duration) { e.write() }

// TestEditInPlace: a file that is written in parts is read when it has come to rest, although each part is a valid file.
func TestEditInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stack.yaml")
	parts := []string{"version: v1\ngate: {mode: disabled}\n", "", "version: v1\n", "version: v1\ngate: {mode: report}\n"}
	at := 0
	write := func() {
		if err := os.WriteFile(path, []byte(parts[at]), 0o600); err != nil {
			t.Fatal(err)
		}
		at = min(at+1, len(parts)-1)
	}
	write()
	s := NewSettingsFile(path, true, &editor{testingclock.NewFakeClock(time.Now()), write}, func(_ string, problems ...gpu.Cause) {
		if len(problems) > 0 {
			t.Errorf("problems %v", problems)
		}
	})
	var seen []v1alpha1.GateMode
	for range 4 {
		seen = append(seen, s.Settings().Mode)
		write()
	}
	if want := []v1alpha1.GateMode{v1alpha1.GateDisabled, v1alpha1.GateDisabled, v1alpha1.GateReport, v1alpha1.GateReport}; !slices.Equal(seen, want) {
		t.Errorf("modes %v, want %v", seen, want)
	}
}

// TestPipe: what is no file does not hold the agent up.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stack.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	code := ""
	if got := NewSettingsFile(path, true, testingclock.NewFakeClock(time.Now()), func(_ string, problems ...gpu.Cause) { code = problems[0].Code }).Settings(); got != completeSettings(v1alpha1.Gate{}) || code != "GATE_SETTINGS" {
		t.Errorf("%+v, problem %q", got, code)
	}
}
