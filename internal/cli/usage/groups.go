package usage

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Group is a group of flags in the help of a command.
type Group string

// The groups, in the order of the help. Flags without a group come first.
const (
	Plain      Group = "Flags"
	Connection Group = "Connection flags"
	Source     Group = "Source flags"
	Output     Group = "Output flags"
)

// annotation is the annotation of a flag with its group.
const annotation = "berth.dev/group"

// SetGroup puts a flag into a group.
func SetGroup(flag *pflag.Flag, group Group) {
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[annotation] = []string{string(group)}
}

// GroupOf returns the group of a flag.
func GroupOf(flag *pflag.Flag) Group {
	if group := flag.Annotations[annotation]; len(group) == 1 {
		return Group(group[0])
	}
	return Plain
}

// Section is the flags of one group.
type Section struct {
	Title Group
	Flags *pflag.FlagSet
}

// Sections splits flags into their groups, without those that have no visible flag.
func Sections(set *pflag.FlagSet) []Section {
	var sections []Section
	for _, group := range [...]Group{Plain, Connection, Source, Output} {
		part := pflag.NewFlagSet("", pflag.ContinueOnError)
		part.SortFlags = set.SortFlags
		set.VisitAll(func(flag *pflag.Flag) {
			if GroupOf(flag) == group {
				part.AddFlag(flag)
			}
		})
		if part.HasAvailableFlags() {
			sections = append(sections, Section{group, part})
		}
	}
	return sections
}

// help writes the usage of a command: cobra's, with the flags in groups.
func help(cmd *cobra.Command) error {
	var text strings.Builder
	text.WriteString("Usage:")
	if cmd.Runnable() {
		text.WriteString("\n  " + cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		text.WriteString("\n  " + cmd.CommandPath() + " [command]")
	}
	if len(cmd.Aliases) > 0 {
		text.WriteString("\n\nAliases:\n  " + cmd.NameAndAliases())
	}
	if cmd.HasExample() {
		text.WriteString("\n\nExamples:\n" + cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		text.WriteString("\n\nAvailable Commands:")
		for _, child := range cmd.Commands() {
			if child.IsAvailableCommand() || child.Name() == "help" {
				fmt.Fprintf(&text, "\n  %-*s %s", child.NamePadding(), child.Name(), child.Short)
			}
		}
	}
	for _, section := range Sections(cmd.LocalFlags()) {
		fmt.Fprintf(&text, "\n\n%s:\n%s", section.Title, strings.TrimRight(section.Flags.FlagUsages(), " \n"))
	}
	if cmd.HasAvailableInheritedFlags() {
		text.WriteString("\n\nGlobal Flags:\n" + strings.TrimRight(cmd.InheritedFlags().FlagUsages(), " \n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&text, "\n\nUse %q for more information about a command.", cmd.CommandPath()+" [command] --help")
	}
	_, err := io.WriteString(cmd.OutOrStderr(), text.String()+"\n")
	return err
}
