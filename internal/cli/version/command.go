// Package version is how programs with a cobra command line print their version.
package version

import (
	"fmt"

	"github.com/spf13/cobra"

	build "github.com/berth-gpu/berth/internal/core/version"
)

// AddTo gives a program's root command the command version and the flag --version, which print
// the same line.
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
