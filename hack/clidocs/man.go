package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-gpu/berth/internal/cli/usage"
)

// manPages returns the page of the manual of each command by its file name, with the texts of docs/cli. The version is in the foot of each
// page.
func manPages(roots []*cobra.Command, version string) map[string]string {
	pages := map[string]string{}
	for _, root := range roots {
		walk(root, func(cmd *cobra.Command) {
			pages[manName(cmd)+".1"] = string(md2man.Render([]byte(manSource(cmd, version))))
		})
	}
	return pages
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manSource returns a page in the Markdown of go-md2man: a title line, and the sections that man(7) has for commands.
func manSource(cmd *cobra.Command, version string) string {
	cmd.InitDefaultHelpFlag()
	var out strings.Builder
	section := func(title, text string) { fmt.Fprintf(&out, "\n# %s\n\n%s", strings.ToUpper(title), text) }
	fmt.Fprintf(&out, "%% \"%s\" \"1\" \"\" \"%s %s\" \"User Commands\"\n", strings.ToUpper(manName(cmd)), cmd.Root().Name(), version)
	section("Name", manName(cmd)+` \- `+escape(strings.TrimSuffix(cmd.Short, "."))+"\n")
	if cmd.Runnable() {
		section("Synopsis", block(cmd.UseLine()))
	}
	if cmd.Long != "" {
		section("Description", prose(cmd.Long))
	}
	manFlags := func(title string, set *pflag.FlagSet) {
		if set.HasAvailableFlags() {
			section(title, block(outdent(set.FlagUsages())))
		}
	}
	if !cmd.IsAdditionalHelpTopicCommand() {
		for _, group := range usage.Sections(cmd.NonInheritedFlags()) {
			manFlags(string(group.Title), group.Flags)
		}
		manFlags("Flags of all "+cmd.Root().Name()+" commands", cmd.InheritedFlags())
	}
	if cmd.HasExample() {
		section("Examples", block(outdent(cmd.Example)))
	}
	var others []string
	for _, other := range related(cmd) {
		others = append(others, "**"+manName(other)+"**(1)")
	}
	if len(others) > 0 {
		section("See also", strings.Join(others, ", ")+"\n")
	}
	return out.String()
}

// writeMan writes the pages of the manual to a directory, which it creates.
func writeMan(dir, version string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range manPages(programs(), version) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
