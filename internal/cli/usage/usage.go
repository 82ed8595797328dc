// Package usage makes the errors of a command line that is used wrongly: one line with what is wrong, what is wanted, and where
// the help is.
//
// It guarantees that the errors of all commands of a program have one form, and that their help has the flags in the same groups. It
// must not import any package of Berth but internal/core/spelling.
package usage

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// Error is a wrong usage of a command.
type Error struct {
	// Text says what is wrong and what is wanted.
	Text string
	// Command is the command, such as berth trace.
	Command string
}

// Error returns the text and the command that prints the help.
func (e *Error) Error() string { return e.Text + "; see " + e.Command + " --help" }

// Prepare replaces the errors of cobra and pflag about arguments and flags, and shows the flags in their groups, in the program and all
// its commands.
func Prepare(root *cobra.Command) {
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultHelpCmd()
	for _, child := range root.Commands() {
		if child.Name() == "help" {
			child.Args = helpArgs
		}
	}
	root.SetUsageFunc(help)
	prepare(root)
}

// helpArgs returns an error for help about a command that does not exist, of which cobra prints the help of the one above it.
func helpArgs(cmd *cobra.Command, args []string) error {
	// Find returns an error only for a command that does not exist, with the one above it.
	found, rest, _ := cmd.Root().Find(args)
	if len(rest) == 0 || !found.HasSubCommands() {
		return nil
	}
	return &Error{Command: found.CommandPath(), Text: unknownCommand(found, rest[0])}
}

func prepare(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if inner := cmd.Args; inner != nil || cmd.HasSubCommands() {
		if inner == nil {
			inner = cobra.NoArgs
		}
		cmd.Args = func(cmd *cobra.Command, args []string) error { return argsError(cmd, args, inner(cmd, args)) }
	}
	for _, child := range cmd.Commands() {
		prepare(child)
	}
}

// ofCobra matches the errors of cobra's own checks of arguments.
var ofCobra = regexp.MustCompile(`arg\(s\)|^unknown command |^invalid argument `)

// argsError returns the error about the arguments of a command in place of cobra's.
func argsError(cmd *cobra.Command, args []string, err error) error {
	if err == nil || !ofCobra.MatchString(err.Error()) {
		return err
	}
	if cmd.HasSubCommands() && len(args) > 0 {
		return &Error{Command: cmd.CommandPath(), Text: unknownCommand(cmd, args[0])}
	}
	_, wanted, _ := strings.Cut(cmd.Use, " ")
	wanted = strings.TrimSpace(strings.TrimSuffix(wanted, "[flags]"))
	if wanted == "" {
		wanted = "no argument"
	}
	got := "none"
	if len(args) > 0 {
		got = strings.Join(args, " ")
	}
	return &Error{Command: cmd.CommandPath(), Text: fmt.Sprintf("%s: want %s, got %s", cmd.CommandPath(), wanted, got)}
}

func unknownCommand(cmd *cobra.Command, name string) string {
	var names []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), name)
	if near := spelling.Nearest(name, names); near != "" {
		return text + ", did you mean " + near + "?"
	}
	return text + ", its commands are " + strings.Join(names, ", ")
}

// flagError returns the error about a flag of a command in place of pflag's, which quotes the errors of Go's parsers.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		text = fmt.Sprintf("--%s %s: want %s", invalid.GetFlag().Name, invalid.GetValue(), wantedValue(invalid))
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		text = fmt.Sprintf("--%s: its value is missing", missing.GetFlag().Name)
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		text = unknownFlag(cmd, unknown)
	}
	return &Error{Command: cmd.CommandPath(), Text: text}
}

// wantedValue describes the values that a flag accepts.
func wantedValue(invalid *pflag.InvalidValueError) string {
	switch kind := invalid.GetFlag().Value.Type(); {
	case kind == "bool":
		return "true or false"
	case kind == "duration":
		return "a duration, such as 30s or 10m"
	case strings.HasPrefix(kind, "uint"):
		return "a whole number, 0 or more"
	case strings.HasPrefix(kind, "int"):
		return "a whole number"
	}
	return strings.TrimPrefix(invalid.Unwrap().Error(), "want ")
}

func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) string {
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return fmt.Sprintf("%s has no flag -%s", cmd.CommandPath(), name)
	}
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	text := fmt.Sprintf("%s has no flag --%s", cmd.CommandPath(), name)
	if near := spelling.Nearest(name, names); near != "" {
		text += ", did you mean --" + near + "?"
	}
	return text
}
