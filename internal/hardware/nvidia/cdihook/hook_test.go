package cdihook

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/version"
)

// TestVersion checks that the hook prints its build, because it remains on the host after the agent was removed.
func TestVersion(t *testing.T) {
	root := command(slog.New(slog.DiscardHandler))
	var out bytes.Buffer
	root.Writer = &out
	if err := root.Run(t.Context(), []string{"berth-cdi-hook", "--version"}); err != nil || !strings.Contains(out.String(), version.Current().String()) {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestNames(t *testing.T) {
	want := []string{"apply-cuda-memory-limits", "chmod", "create-symlinks", "disable-device-node-modification",
		"enable-cuda-compat", "update-application-profile", "update-ldcache"}
	if diff := cmp.Diff(want, Names()); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestRun checks that a hook that this version does not have does not stop the container, and that one that it has and
// cannot run does.
func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		args    []string
		wantErr string
		wantLog string
	}{
		"no hook":            {args: []string{"berth-cdi-hook"}, wantLog: "No CDI hook specified"},
		"hook of the future": {args: []string{"berth-cdi-hook", "fold-space", "--far"}, wantLog: "Unsupported CDI hook: fold-space"},
		"bad flag":           {args: []string{"berth-cdi-hook", "create-symlinks", "--nonsense"}, wantErr: "nonsense"},
		"no container":       {args: []string{"berth-cdi-hook", "create-symlinks", "--container-spec", "/nowhere", "--link", "a::b"}, wantErr: "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			err := Run(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), test.args)
			if (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error is %v, want %q", err, test.wantErr)
			}
			if !strings.Contains(log.String(), test.wantLog) {
				t.Errorf("log is %q, want %q", log.String(), test.wantLog)
			}
		})
	}
}
