package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-gpu/berth/internal/cli/print"
)

// output is the flags about the output, with the errors of this package.
type output struct{ print.Flags }

// bind adds the flags of a command whose object has no rows.
func (o *output) bind(flags *pflag.FlagSet) { o.AddTo(flags, print.Offer{}) }

func (o *output) check() error {
	if err := o.Validate(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

// print writes an object without rows, or calls table.
func (o *output) print(w io.Writer, object any, table func(io.Writer) error) error {
	return o.Print(w, object, print.Rows{}, table)
}

// atMostOneNode validates the arguments of commands that take the name of a node, or none for this node.
func atMostOneNode(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s: want one node name, or none for this node; got %d: %s", cmd.Name(), len(args), strings.Join(args, ", "))
	}
	return nil
}
