package stackfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestSettings(t *testing.T) {
	defaults := v1alpha1.Gate{Mode: v1alpha1.GateEnforce, TaintKey: "berth.dev/not-validated", Timeout: metav1.Duration{Duration: 10 * time.Minute}, OnTimeout: v1alpha1.GateHold}
	set := v1alpha1.Gate{Mode: v1alpha1.GateReport, TaintKey: "example.com/x", Timeout: metav1.Duration{Duration: time.Minute}, OnTimeout: v1alpha1.GateOpen}
	const text = "version: v1\nnew: {of: a later release}\ngate: {mode: report, taintKey: example.com/x, timeout: 1m0s, onTimeout: open}\n"
	steps := []struct {
		text string
		want v1alpha1.Gate
		code string
	}{
		{"{", defaults, "GATE_SETTINGS"}, {text, set, ""}, {"gate: [1]\n", set, "GATE_SETTINGS"}, {text, set, ""}, {"version: v1\n", defaults, ""},
	}
	code := ""
	path := filepath.Join(t.TempDir(), "stack.yaml")
	s := New(path, true, func(_ string, problems ...gpu.Cause) {
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
	for _, off := range []*File{New("", true, nil), New(path, false, nil)} {
		if got := off.Settings(); got.Mode != v1alpha1.GateDisabled {
			t.Errorf("settings %+v, want the gate off", got)
		}
	}
}
