// Package version adds the command and the flag that print the version to programs with a cobra command line.
package version

import (
	"fmt"

	"github.com/spf13/cobra"

	build "github.com/berth-gpu/berth/internal/core/version"
)

// AddTo adds the command version and the flag --version, which print the same line, to a program's root command.
func AddTo(root *cobra.Command) {
	root.Version = build.Current().String()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), root.Name(), root.Version)
			return err
		},
	})
}
