package usage

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// tool is a program with a group of commands, and one with arguments and flags of several types.
func tool() *cobra.Command {
	run := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "tool", SilenceErrors: true, SilenceUsage: true}
	root.SetOut(io.Discard)
	group := &cobra.Command{Use: "mig", Args: cobra.NoArgs, RunE: run}
	plan := &cobra.Command{Use: "plan NODE LAYOUT", Args: cobra.ExactArgs(2), RunE: run}
	plan.Flags().Int("pid", 0, "")
	plan.Flags().Uint32("power", 0, "")
	plan.Flags().DurationP("wait", "w", time.Second, "")
	plan.Flags().Bool("force", false, "")
	group.AddCommand(plan)
	probe := &cobra.Command{Use: "probe healthy|ready", ValidArgs: []string{"healthy", "ready"}, Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), RunE: run}
	own := &cobra.Command{Use: "own", Args: func(*cobra.Command, []string) error { return errors.New("an error of its own") }, RunE: run}
	root.AddCommand(group, probe, own, &cobra.Command{Use: "status", Args: cobra.NoArgs, RunE: run})
	Prepare(root)
	return root
}

// TestErrors: each error is one line with what is wrong, what is wanted, and the command that prints the help.
func TestErrors(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"unknown command":           {[]string{"prob"}, "tool has no command \"prob\", did you mean probe?; see tool --help"},
		"unknown command, far":      {[]string{"xxxxxxxx"}, "tool has no command \"xxxxxxxx\", its commands are completion, mig, own, probe, status; see tool --help"},
		"unknown command of group":  {[]string{"mig", "plna"}, "tool mig has no command \"plna\", did you mean plan?; see tool mig --help"},
		"no arguments":              {[]string{"mig", "plan"}, "tool mig plan: want NODE LAYOUT, got none; see tool mig plan --help"},
		"too few":                   {[]string{"mig", "plan", "node-0"}, "tool mig plan: want NODE LAYOUT, got node-0; see tool mig plan --help"},
		"too many":                  {[]string{"mig", "plan", "a", "b", "c"}, "tool mig plan: want NODE LAYOUT, got a b c; see tool mig plan --help"},
		"none wanted":               {[]string{"status", "x"}, "tool status: want no argument, got x; see tool status --help"},
		"not one of the valid ones": {[]string{"probe", "alive"}, "tool probe: want healthy|ready, got alive; see tool probe --help"},
		"an error of the command":   {[]string{"own"}, "an error of its own"},
		"int":                       {[]string{"mig", "plan", "--pid", "abc"}, "--pid abc: want a whole number; see tool mig plan --help"},
		"uint":                      {[]string{"mig", "plan", "--power", "-1"}, "--power -1: want a whole number, 0 or more; see tool mig plan --help"},
		"duration":                  {[]string{"mig", "plan", "--wait", "soon"}, "--wait soon: want a duration, such as 30s or 10m; see tool mig plan --help"},
		"bool":                      {[]string{"mig", "plan", "--force=maybe"}, "--force maybe: want true or false; see tool mig plan --help"},
		"no value":                  {[]string{"mig", "plan", "--wait"}, "--wait: its value is missing; see tool mig plan --help"},
		"unknown flag":              {[]string{"mig", "plan", "--forse"}, "tool mig plan has no flag --forse, did you mean --force?; see tool mig plan --help"},
		"unknown flag, far":         {[]string{"mig", "plan", "--kubeconfig"}, "tool mig plan has no flag --kubeconfig; see tool mig plan --help"},
		"unknown short flag":        {[]string{"mig", "plan", "-z"}, "tool mig plan has no flag -z; see tool mig plan --help"},
		"help":                      {[]string{"help", "mig", "plan"}, ""},
		"help about nothing":        {[]string{"help", "statsu"}, "tool has no command \"statsu\", did you mean status?; see tool --help"},
		"help about nothing below":  {[]string{"help", "mig", "plna"}, "tool mig has no command \"plna\", did you mean plan?; see tool mig --help"},
		"right":                     {[]string{"mig", "plan", "node-0", "all-1g.10gb", "--wait", "3s"}, ""},
		"a group prints its help":   {nil, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := tool()
			root.SetArgs(tc.args)
			got := ""
			if err := root.Execute(); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
