package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// TestPagesAreFresh compares docs/cli with the commands.
func TestPagesAreFresh(t *testing.T) {
	if diff := cmp.Diff(pages(programs()), read(t, folder)); diff != "" {
		t.Errorf("docs/cli is stale; run make generate, or go generate ./hack/clidocs (-want +present):\n%s", diff)
	}
}

// TestCommandsAreDocumented: each command that can be run has a description and an example, and nothing depends on the
// machine that the pages are generated on.
func TestCommandsAreDocumented(t *testing.T) {
	count := 0
	for _, root := range programs() {
		walk(root, func(cmd *cobra.Command) {
			count++
			if cmd.Short == "" || cmd.Name() != "version" && cmd.Runnable() && cmd.Example == "" {
				t.Errorf("%s: %q, and the examples %q; want both", cmd.CommandPath(), cmd.Short, cmd.Example)
			}
			if strings.HasSuffix(cmd.Short, ".") {
				t.Errorf("%s: the short text %q ends with a full stop", cmd.CommandPath(), cmd.Short)
			}
		})
	}
	if count < 15 {
		t.Errorf("only %d commands", count)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages(programs()) {
		for _, own := range []string{host, os.Getenv("HOME") + "/"} {
			if len(own) > 4 && strings.Contains(text, own) {
				t.Errorf("%s depends on this machine: %q", name, own)
			}
		}
	}
}

// TestPage: the parts of a page, with hidden commands left out and plain text kept from being Markdown.
func TestPage(t *testing.T) {
	run := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{
		Use: "tool", Short: "Read <files>", Long: "Read *files*.\n\n  a  one\n    b  two\n", Example: "  tool\n    tool read x", RunE: run,
	}
	root.PersistentFlags().String("from", "", "read from `DIR`")
	child := &cobra.Command{Use: "read FILE", Short: "Read one", RunE: run}
	child.Flags().Bool("all", false, "read everything")
	topic := &cobra.Command{Use: "codes", Short: "The codes", Long: "All of them."}
	root.AddCommand(child, &cobra.Command{Use: "inner", Hidden: true, RunE: run}, topic)
	want := map[string]string{
		"README.md": generated + `# Commands

## tool

- [tool](tool.md): Read \<files>
- [tool codes](tool_codes.md): The codes
- [tool read](tool_read.md): Read one
`,
		"tool.md": generated + "# tool\n\nRead \\<files>.\n\n```text\ntool [flags]\n```\n\nRead \\*files\\*.\n\n```text\na  one\n  b  two\n```\n\n" +
			"## Examples\n\n```text\ntool\n  tool read x\n```\n\n## Flags\n\n```text\n    --from DIR   read from DIR\n-h, --help       help for tool\n```\n\n" +
			"## See also\n\n- [tool codes](tool_codes.md): The codes\n- [tool read](tool_read.md): Read one\n",
		"tool_codes.md": generated + "# tool codes\n\nThe codes.\n\nAll of them.\n\n## See also\n\n- [tool](tool.md): Read \\<files>\n",
		"tool_read.md": generated + "# tool read\n\nRead one.\n\n```text\ntool read FILE [flags]\n```\n\n" +
			"## Flags\n\n```text\n    --all    read everything\n-h, --help   help for read\n```\n\n" +
			"## Flags of all tool commands\n\n```text\n--from DIR   read from DIR\n```\n\n## See also\n\n- [tool](tool.md): Read \\<files>\n",
	}
	if diff := cmp.Diff(want, pages([]*cobra.Command{root})); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}

// TestWrite: pages of commands that no longer exist are removed; other files stay.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tool_old.md", "picture.svg"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{"tool.md": "a page\n"}
	for range 2 {
		if err := write(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, read(t, dir)); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(dir, "picture.svg")); err != nil {
		t.Error(err)
	}
}

// read returns the text of each page of a folder by its file name.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found[filepath.Base(path)] = string(text)
	}
	return found
}
