package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

// exitRows is a script whose lines "exits CODE berth COMMAND..." are the rows of TestExitCodes.
const exitRows = "testdata/exitcodes.txtar"

// TestExitCodes runs each command with each exit code that it can have. It fails when a command lacks a row for 0, for 2 or, if its help
// says what 1 means, for 1, and when a row expects 1 of another command.
func TestExitCodes(t *testing.T) {
	params := scriptParams()
	params.Files = []string{exitRows}
	params.ContinueOnError = true
	t.Run("rows", func(t *testing.T) { testscript.Run(t, params) })

	root := NewRoot(Deps{Out: io.Discard, Err: io.Discard, Name: "berth"})
	have := readExitRows(t, root)
	var finds []string
	for _, row := range findings() {
		finds = append(finds, row[0])
	}
	for _, path := range runnable(root) {
		want := []int{ExitOK, ExitUnknown}
		if slices.Contains(finds, path) {
			want = []int{ExitOK, ExitFinding, ExitUnknown}
		}
		got := have[path]
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("berth %s: %s has rows for the exit codes %v, want %v", path, exitRows, got, want)
		}
		finds = slices.DeleteFunc(finds, func(name string) bool { return name == path })
	}
	if len(finds) > 0 {
		t.Errorf("findings() has commands that do not exist: %q", finds)
	}
}

// readExitRows returns the exit codes that the script expects, by the path of the command without the program's name.
func readExitRows(t *testing.T, root *cobra.Command) map[string][]int {
	t.Helper()
	text, err := os.ReadFile(exitRows)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string][]int{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "exits" || words[2] != root.Name() {
			continue
		}
		code, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatalf("%s: %s: %v", exitRows, line, err)
		}
		// Find returns an error only for a command that does not exist, which is the row of the one above it.
		found, _, _ := root.Find(words[3:])
		have[pathOf(found)] = append(have[pathOf(found)], code)
	}
	return have
}

// runnable returns the paths of the commands that can be run, without the program's name.
func runnable(cmd *cobra.Command) []string {
	var paths []string
	if cmd.Runnable() {
		paths = append(paths, pathOf(cmd))
	}
	for _, child := range cmd.Commands() {
		paths = append(paths, runnable(child)...)
	}
	return paths
}

func pathOf(cmd *cobra.Command) string {
	return strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()))
}

// TestExitCode: the code of each type of error, also wrapped and joined.
func TestExitCode(t *testing.T) {
	tests := map[string]struct {
		err  error
		want int
	}{
		"none":                  {nil, ExitOK},
		"any":                   {errors.New("connection refused"), ExitUnknown},
		"usage":                 {usagef("-o %s: want json", "xml"), ExitUnknown},
		"with its fix":          {&hintError{errors.New("x"), "fix: y"}, ExitUnknown},
		"finding":               {finding(errors.New("the GPU is in use")), ExitFinding},
		"finding with its fix":  {finding(&hintError{errors.New("x"), "fix: y"}), ExitFinding},
		"wrapped finding":       {fmt.Errorf("status: %w", finding(errors.New("x"))), ExitFinding},
		"finding after a print": {errors.Join(nil, finding(errors.New("x"))), ExitFinding},
		"disagreement":          {errDisagreement, ExitFinding},
		"not all checked":       {errNotAllChecked, ExitUnknown},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := exitCode(tc.err); got != tc.want {
				t.Errorf("exitCode(%v) = %d, want %d", tc.err, got, tc.want)
			}
		})
	}
}
