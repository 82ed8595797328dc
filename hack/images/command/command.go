// Package command is the command line of berth-images.
//
// It guarantees that results go to the standard output and progress to the standard error. It may import all packages of
// hack/images, and of Berth those of its command lines.
package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/cli/version"
)

// Deps are what the commands need.
type Deps struct {
	// Out takes results, Err progress and errors.
	Out io.Writer
	Err io.Writer
}

// Run runs the command line and returns the exit status: 0, or 2 after an error.
func Run(ctx context.Context, d Deps, args []string) int {
	root := &cobra.Command{
		Use:           "berth-images",
		Short:         "Make and publish the container images of Berth's programs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(makeCommand(), pushCommand(), registryCommand())
	version.AddTo(root)
	usage.Prepare(root)
	root.SetArgs(args)
	root.SetOut(d.Out)
	root.SetErr(d.Err)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(d.Err, "error:", err)
		return 2
	}
	return 0
}
