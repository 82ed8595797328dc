package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented is a command of a document.
type documented struct {
	command string
	// as is what is run in its place, where the command has something of which the reader writes his own.
	as string
	// skip says why it is not run here. Where that names tests, they exist.
	skip string
	// onNode: it is run on the node, as root of the node.
	onNode bool
	// before makes what the command needs, and the document does not make by a command.
	before func(*testing.T, *documentCluster)
	// want is a regular expression of what it prints.
	want string
	// output are lines that the document shows below the command, all of which are printed.
	output []string
}

// documentedSection has the commands of a section of a document, in its order.
type documentedSection struct {
	document, title string
	commands        []documented
}

// writtenCommand is a command of a document with the lines that the document shows below it.
type writtenCommand struct {
	command string
	output  []string
}

var (
	heading = regexp.MustCompile(`^#+ (.+)$`)
	// commandStart is how a command starts: a prompt, or one of the programs that the documents name. A block that starts with anything
	// else is an output, a file or a drawing.
	commandStart = regexp.MustCompile(`^(\$ )?(bin/)?(berth|berth-agent|berth-sandbox|kubectl|helm|make|go|docker|ctr|cd|export|python3|nvidia-smi|/tmp/\S+|hack/\S+)( |$)`)
	explanation  = regexp.MustCompile(` +# .*$`)
	testNames    = regexp.MustCompile(`\bTest[A-Z]\w+`)
)

// commandsOf returns the commands of the indented and fenced blocks of a document by the title of their section, without the explanations
// behind them.
func commandsOf(text string) map[string][]writtenCommand {
	found := map[string][]writtenCommand{}
	title, fence, block := "", false, []string(nil)
	end := func() {
		found[title] = append(found[title], commandsOfBlock(block)...)
		block = nil
	}
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimSuffix(line, "\n")
		switch m := heading.FindStringSubmatch(line); {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			end()
			fence = !fence
		case fence:
			block = append(block, line)
		case m != nil:
			end()
			title = m[1]
		case strings.HasPrefix(line, "    "):
			block = append(block, strings.TrimPrefix(line, "    "))
		default:
			end()
		}
	}
	end()
	for title, commands := range found {
		if len(commands) == 0 {
			delete(found, title)
		}
	}
	return found
}

// commandsOfBlock returns the commands of a block, or none where the block does not start with one.
func commandsOfBlock(block []string) (commands []writtenCommand) {
	open := false
	for _, line := range block {
		switch {
		case open:
			last := &commands[len(commands)-1]
			last.command = strings.TrimSuffix(last.command, `\`)
			last.command = strings.TrimRight(last.command, " ") + " " + strings.TrimSpace(line)
		case commandStart.MatchString(line):
			line, _ = strings.CutPrefix(line, "$ ")
			commands = append(commands, writtenCommand{command: explanation.ReplaceAllString(line, "")})
		case len(commands) == 0:
			return nil
		default:
			last := &commands[len(commands)-1]
			last.output = append(last.output, line)
		}
		if text := commands[len(commands)-1].command; len(commands[len(commands)-1].output) == 0 {
			open = strings.HasSuffix(text, `\`) || strings.Count(text, "'")%2 == 1
		}
	}
	return commands
}

// TestDocumentCommands compares the commands of all documents with those that TestOperateDocs runs or leaves out: a command that is written
// to a document has to be put there too.
func TestDocumentCommands(t *testing.T) {
	listed := documentedSections()
	for _, document := range documentPaths(t) {
		text, err := os.ReadFile(repository(document))
		if err != nil {
			t.Fatal(err)
		}
		found := commandsOf(string(text))
		for _, section := range listed {
			if section.document != document {
				continue
			}
			var got, want []string
			for i, c := range section.commands {
				want = append(want, c.command)
				if i < len(found[section.title]) {
					checkOutput(t, &section, &c, found[section.title][i].output)
				}
			}
			for _, c := range found[section.title] {
				got = append(got, c.command)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, %q has the commands\n%s\nand the table of TestOperateDocs\n%s", document, section.title, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			delete(found, section.title)
		}
		for title, commands := range found {
			t.Errorf("%s, %q: the table of TestOperateDocs does not have the commands\n%+v", document, title, commands)
		}
	}
	checkReasons(t, listed)
}

// checkOutput compares the lines that a document shows below a command with those that the table expects. "..." stands for some that are
// left out.
func checkOutput(t *testing.T, section *documentedSection, c *documented, lines []string) {
	t.Helper()
	lines = slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.TrimSpace(line) == "..." })
	if !slices.Equal(lines, c.output) {
		t.Errorf("%s, %q: below %s are the lines\n%q\nthe table has\n%q", section.document, section.title, c.command, lines, c.output)
	}
}

// checkReasons fails the test when a reason to leave a command out names a test that does not exist.
func checkReasons(t *testing.T, sections []documentedSection) {
	t.Helper()
	tests := allTests(t)
	run := 0
	for _, section := range sections {
		for _, c := range section.commands {
			if c.skip == "" {
				run++
			}
			for _, name := range testNames.FindAllString(c.skip, -1) {
				if !tests[name] {
					t.Errorf("%s, %q, %s: there is no %s", section.document, section.title, c.command, name)
				}
			}
		}
	}
	t.Logf("%d commands are run", run)
}

// documentPaths returns the documents that are written by hand. TestWrittenCommands looks up the commands of the generated ones, too.
func documentPaths(t *testing.T) []string {
	t.Helper()
	paths := []string{"README.md", "CONTRIBUTING.md"}
	err := filepath.WalkDir(repository("docs"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "cli":
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		path, err = filepath.Rel(repository(), path)
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// allTests returns the names of the tests of the repository.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	names, function := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, dir := range []string{"internal", "kube", "hack", "charts", "cmd"} {
		err := filepath.WalkDir(repository(dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range function.FindAllStringSubmatch(string(text), -1) {
				names[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// TestCommandsOf proves that the check above finds commands.
func TestCommandsOf(t *testing.T) {
	tests := map[string]struct {
		text string
		want []writtenCommand
	}{
		"a block":          {"    berth gpus    # all\n    kubectl get pods\n", []writtenCommand{{command: "berth gpus"}, {command: "kubectl get pods"}}},
		"a fenced block":   {"```\nberth gpus\n```\n", []writtenCommand{{command: "berth gpus"}}},
		"not a command":    {"    a drawing\n    berth gpus\n", nil},
		"another language": {"```yaml\ngo: 1\n```\n", nil},
		"continued":        {"    helm upgrade a \\\n      --set b=c\n    berth gpus\n", []writtenCommand{{command: "helm upgrade a --set b=c"}, {command: "berth gpus"}}},
		"quoted":           {"    kubectl get a | jq 'b\n      c' > d\n", []writtenCommand{{command: "kubectl get a | jq 'b c' > d"}}},
		"with its output":  {"    $ berth gpus\n    NODE\n    ...\n", []writtenCommand{{command: "berth gpus", output: []string{"NODE", "..."}}}},
		"a path":           {"    bin/berth gpus\n", []writtenCommand{{command: "bin/berth gpus"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := commandsOf("# Title\n\ntext\n\n" + tt.text)["Title"]
			if len(got) != len(tt.want) {
				t.Fatalf("got %+v, want %+v", got, tt.want)
			}
			for i := range got {
				if got[i].command != tt.want[i].command || !slices.Equal(got[i].output, tt.want[i].output) {
					t.Errorf("got %+v, want %+v", got[i], tt.want[i])
				}
			}
		})
	}
}
