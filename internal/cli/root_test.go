package cli

import (
	"strings"
	"testing"
)

// TestErrorsAreClean: what an error quotes cannot draw on the terminal, and its lines stay.
func TestErrorsAreClean(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"an escape":         {[]string{"gpus", "--group-by", "\x1b[2Ja"}, `error: --group-by \x1b[2Ja: want node, model, namespace, resource; see berth gpus --help` + "\n"},
		"before it started": {[]string{"gpus", "--a\u202eb"}, `error: berth gpus has no flag --a\x202eb; see berth gpus --help` + "\n"},
		"with its fix": {[]string{"why", "a\x07", "--kubeconfig", "/none/\x1b[31m"},
			"error: why: no API server: stat /none/\\x1b[31m: no such file or directory\nfix: correct --kubeconfig or its file\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out, problems strings.Builder
			if code := Run(t.Context(), Deps{Out: &out, Err: &problems, Name: "berth", KubeletDir: "none"}, tc.args); code != ExitUnknown || problems.String() != tc.want {
				t.Errorf("exit code %d, %q, want %q", code, problems.String(), tc.want)
			}
		})
	}
}
