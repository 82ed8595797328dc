package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/version"
)

// TestAddTo: the command and the flag say the same.
func TestAddTo(t *testing.T) {
	want := "berth-x " + version.Current().String() + "\n"
	for _, argument := range []string{"version", "--version"} {
		var out strings.Builder
		root := &cobra.Command{Use: "berth-x", RunE: func(*cobra.Command, []string) error { return nil }}
		AddTo(root)
		root.SetOut(&out)
		root.SetArgs([]string{argument})
		if err := root.Execute(); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", argument, out.String(), err, want)
		}
	}
}
