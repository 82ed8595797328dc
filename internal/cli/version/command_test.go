package version

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	build "github.com/berth-gpu/berth/internal/core/version"
)

// TestAddTo checks that the command and the flag print the same.
func TestAddTo(t *testing.T) {
	want := "berth-x " + build.Current().String() + "\n"
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
