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
	return usagef("-o %s: there are table, json and yaml", o.format)
}

// atMostOneNode is for commands that take the name of a node, or none for this one.
func atMostOneNode(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s: name one node, or none for this node; got %d: %s", cmd.Name(), len(args), strings.Join(args, ", "))
	}
	return nil
}

// print writes the object, or has the table written.
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
