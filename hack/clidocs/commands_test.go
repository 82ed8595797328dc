package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// repository is the root of the repository, seen from this package.
const repository = "../.."

var (
	fenced   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	span     = regexp.MustCompile("`([^`]+)`")
	indented = regexp.MustCompile(`(?m)^ {4,}(?:\$ )?(\S.*)$`)
	endsArg  = regexp.MustCompile(`[|;&<>]|\s#|\s{3,}`)
)

// written returns the commands of the programs that a document names, in its text and in its blocks.
func written(text string, programs []string) []string {
	text = fenced.ReplaceAllStringFunc(text, func(block string) string { return regexp.MustCompile("(?m)^").ReplaceAllString(block, "    ") })
	var found []string
	add := func(command string) {
		command = strings.TrimPrefix(command, "bin/")
		name, _, _ := strings.Cut(command, " ")
		if !slices.Contains(programs, name) {
			return
		}
		if end := endsArg.FindStringIndex(command); end != nil {
			command = command[:end[0]]
		}
		found = append(found, strings.TrimSpace(command))
	}
	for _, m := range indented.FindAllStringSubmatch(text, -1) {
		add(m[1])
	}
	for _, m := range span.FindAllStringSubmatch(indented.ReplaceAllString(text, ""), -1) {
		add(strings.Join(strings.Fields(m[1]), " "))
	}
	return found
}

// wrong says what a command line does not have of what is written, or "".
func wrong(root *cobra.Command, args []string) string {
	cmd := root
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		next := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == args[0] || c.HasAlias(args[0]) })
		if next < 0 {
			break
		}
		cmd, args = cmd.Commands()[next], args[1:]
	}
	if cmd.HasSubCommands() && len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "[flags]" {
		return cmd.CommandPath() + " has no command " + args[0]
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		long, isLong := strings.CutPrefix(name, "--")
		short, isShort := strings.CutPrefix(name, "-")
		switch {
		case isLong && long == "":
			return ""
		case isLong && cmd.Flag(long) == nil:
			return cmd.CommandPath() + " has no flag --" + long
		case isShort && !isLong && short != "" && cmd.Flags().ShorthandLookup(short[:1]) == nil && cmd.InheritedFlags().ShorthandLookup(short[:1]) == nil:
			return cmd.CommandPath() + " has no flag -" + short[:1]
		}
	}
	return ""
}

// TestWrittenCommands looks each command of the programs up that a document of the repository names, in its text too: the command and its
// flags exist. That they do what the document says is tested elsewhere (TestOperateDocs).
func TestWrittenCommands(t *testing.T) {
	roots := map[string]*cobra.Command{}
	var names []string
	for _, root := range programs() {
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd()
		roots[root.Name()], names = root, append(names, root.Name())
	}
	total := 0
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range written(string(text), names) {
			args := strings.Fields(command)
			total++
			if problem := wrong(roots[args[0]], args[1:]); problem != "" {
				t.Errorf("%s: %q: %s", strings.TrimPrefix(path, repository+"/"), command, problem)
			}
		}
	}
	if total < 400 {
		t.Errorf("the documents name %d commands, which is fewer than they have", total)
	}
	t.Logf("%d commands", total)
}

// documents returns the paths of all documents.
func documents(t *testing.T) []string {
	t.Helper()
	paths := []string{repository + "/README.md", repository + "/CONTRIBUTING.md"}
	err := filepath.WalkDir(repository+"/docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestWrongCommandsAreFound proves that the check above can fail.
func TestWrongCommandsAreFound(t *testing.T) {
	roots := map[string]*cobra.Command{}
	for _, root := range programs() {
		roots[root.Name()] = root
	}
	tests := map[string]struct {
		text string
		want string
	}{
		"a command":             {"`berth gpus`", ""},
		"over two lines":        {"see `berth\nmig plan node-0 all-balanced`", ""},
		"a command of a block":  {"text\n\n    berth gpus --fre # free\n", "berth gpus has no flag --fre"},
		"of a fenced block":     {"```\nbin/berth gpus --fre\n```\n", "berth gpus has no flag --fre"},
		"of a list":             {"1. do\n   ```\n   berth mig plann\n   ```\n", "berth mig has no command plann"},
		"after a prompt":        {"    $ berth gpus -9\n", "berth gpus has no flag -9"},
		"an inherited flag":     {"`berth-agent inspect gpus --sim DIR`", ""},
		"a flag after a pipe":   {"`berth gpus -o json | jq --nothing`", ""},
		"a flag of another one": {"`berth topo --free`", "berth topo has no flag --free"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			commands := written(tt.text, []string{"berth", "berth-agent", "berth-operator"})
			if len(commands) != 1 {
				t.Fatalf("found %q", commands)
			}
			args := strings.Fields(commands[0])
			if got := wrong(roots[args[0]], args[1:]); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
