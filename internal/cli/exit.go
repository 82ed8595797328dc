package cli

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	ExitOK = 0
	// ExitFinding ends a command that has found out something that is not fine: sources disagree, a node has a problem, a claim does not
	// fit, or what was asked for was refused or not done.
	ExitFinding = 1
	// ExitUnknown ends a command that could not find out, also because it was used wrongly or what it was asked about does not exist.
	ExitUnknown = 2
)

// exitCode returns the exit code of an error. It is the only place that does.
func exitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if shown, ok := errors.AsType[*shownError](err); ok {
		return shown.code
	}
	if _, ok := errors.AsType[*findingError](err); ok {
		return ExitFinding
	}
	return ExitUnknown
}

// shownError ends a command whose output says all: nothing more is printed.
type shownError struct {
	text string
	code int
}

func (e *shownError) Error() string { return e.text }

// These errors end a command after its output.
var (
	errDisagreement  error = &shownError{"the sources disagree", ExitFinding}
	errProblems      error = &shownError{"there are problems", ExitFinding}
	errDoesNotFit    error = &shownError{"it does not fit", ExitFinding}
	errRefused       error = &shownError{"it is refused", ExitFinding}
	errNotAllChecked error = &shownError{"not everything could be checked", ExitUnknown}
)

// findingError is an error that is a finding, as opposed to one that left something unknown.
type findingError struct{ err error }

func finding(err error) error { return &findingError{err} }

func (e *findingError) Error() string { return e.err.Error() }
func (e *findingError) Unwrap() error { return e.err }

// findings says what exit code 1 means for each command that has it, in the order of the table.
func findings() [][2]string {
	return [][2]string{
		{"trace", "two sources disagree"},
		{"doctor", "the node has a problem"},
		{"fit", "a claim or pod of the file does not fit"},
		{"status", "with --wait: a node was not validated in time"},
		{"mig plan", "the layout is refused"},
		{"mig apply", "the layout is refused, has failed, or was not applied in time"},
		{"reset", "the GPU is in use, or its reset failed"},
		{"values check", "Helm or an agent would refuse the values"},
		{"uninstall", "something in the cluster prevents the removal, it is incomplete, or it was not confirmed"},
	}
}

// newExitCodesTopic returns the help about exit codes, which is no command that can be run.
func newExitCodesTopic() *cobra.Command {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "  COMMAND\tEXIT CODE 1 WHEN\n")
	for _, row := range findings() {
		fmt.Fprintf(w, "  %s\t%s\n", row[0], row[1])
	}
	w.Flush() // A strings.Builder takes everything.
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "The exit codes of all commands",
		Long: `All commands end with one of three exit codes:

  0  the answer is complete, and it is fine
  1  the answer is complete, and it is a finding: the table says of what kind
  2  the command could not find out: it was used wrongly, what it was asked about does not
     exist, or an API server, an agent, a file or the hardware could not be read

A command that is not in the table ends with 0 or 2.

` + table.String(),
	}
}
