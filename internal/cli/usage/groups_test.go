package usage

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

const wantHelp = `Show things.

Usage:
  tool show [flags]

Aliases:
  show, list

Examples:
  tool show

Flags:
  -h, --help   help for show
      --long   more

Connection flags:
  -s, --server string   the server

Output flags:
  -o, --output format   the format
`

// TestHelp: flags are in groups, those without one first; a group without visible flags is left out.
func TestHelp(t *testing.T) {
	root := &cobra.Command{Use: "tool"}
	show := &cobra.Command{Use: "show", Aliases: []string{"list"}, Short: "Show", Long: "Show things.", Example: "  tool show", Run: func(*cobra.Command, []string) {}}
	flags := show.Flags()
	flags.StringP("output", "o", "", "the `format`")
	flags.StringP("server", "s", "", "the server")
	flags.Bool("long", false, "more")
	flags.Bool("secret", false, "hidden")
	for name, group := range map[string]Group{"output": Output, "server": Connection, "secret": Source} {
		SetGroup(flags.Lookup(name), group)
	}
	if err := flags.MarkHidden("secret"); err != nil {
		t.Fatal(err)
	}
	root.AddCommand(show)
	Prepare(root)
	got := map[string]string{}
	for _, args := range []string{"show --help", "--help"} {
		var out strings.Builder
		root.SetOut(&out)
		root.SetArgs(strings.Fields(args))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		got[args] = out.String()
	}
	if diff := cmp.Diff(wantHelp, got["show --help"]); diff != "" {
		t.Errorf("of a command, -want +got:\n%s", diff)
	}
	for _, want := range []string{"Available Commands:\n", "\n  show        Show\n", "\nUse \"tool [command] --help\" for more information about a command.\n"} {
		if !strings.Contains(got["--help"], want) {
			t.Errorf("of the program, want %q in\n%s", want, got["--help"])
		}
	}
}
