package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// output is the -o flag.
type output struct{ format string }

func (o *output) bind(flags *pflag.FlagSet) {
	flags.StringVarP(&o.format, "output", "o", "table", "output format: table, json or yaml")
}

func (o *output) check() error {
	switch o.format {
	case "table", "json", "yaml":
		return nil
	}
	return usagef("-o %s: want table, json or yaml", o.format)
}

// atMostOneNode validates the arguments of commands that take the name of a node, or none for this node.
func atMostOneNode(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s: want one node name, or none for this node; got %d: %s", cmd.Name(), len(args), strings.Join(args, ", "))
	}
	return nil
}

// print writes the object as JSON or YAML, or calls table.
func (o *output) print(w io.Writer, object any, table func(io.Writer) error) error {
	switch o.format {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(object)
	case "yaml":
		blob, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(blob)
		return err
	}
	return table(w)
}
