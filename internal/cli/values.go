package cli

import (
	"fmt"
	"io"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/values"
)

// maxValues bounds a values file.
const maxValues = 1 << 20

func newValuesCommand(deps Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "values",
		Short:   "Check values files of the Helm chart",
		Long:    "Check values files of the chart berth before they reach a cluster.",
		Example: `  berth values check my-values.yaml         what Helm or an agent would refuse, and the fix`,
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(newValuesCheckCommand(deps))
	return cmd
}

func newValuesCheckCommand(deps Deps) *cobra.Command {
	var format output
	var namespace string
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check values files before helm install or helm upgrade",
		Long: `Check values files of the chart berth, merged in their order as Helm does with --values.

It names each wrong key with its line and the nearest known key, and finds what the schema of
the chart cannot see: a configuration that the agent would refuse, a right that a configuration
needs and that is off, settings that the chart makes itself. It asks no cluster.

The exit code is 1 when Helm or an agent would refuse the values. Warnings do not change it.`,
		Example: `  berth values check my-values.yaml
  berth values check all-clusters.yaml this-cluster.yaml
  helm get values berth -n berth-system -o yaml | berth values check -
  berth values check my-values.yaml -o json | jq '.problems[].key'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.check(); err != nil {
				return err
			}
			report := &v1alpha1.ValuesReport{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindValuesReport}, Files: args}
			var files []values.File
			for _, name := range args {
				data, err := readValues(name, cmd.InOrStdin())
				if err != nil {
					return err
				}
				files = append(files, values.File{Name: name, Data: data})
			}
			report.Problems = append([]v1alpha1.ValuesProblem{}, values.Check(namespace, files...)...)
			if err := format.print(deps.Out, report, func(w io.Writer) error { return printValues(w, report) }); err != nil {
				return err
			}
			if slices.ContainsFunc(report.Problems, func(p v1alpha1.ValuesProblem) bool { return !p.Warning }) {
				return errRefused
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "berth-system", "the namespace of the release")
	format.bind(cmd.Flags())
	return cmd
}

// readValues reads a values file; "-" is the standard input.
func readValues(name string, in io.Reader) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxValues+1))
	if err != nil {
		return nil, fmt.Errorf("read values: %w", err)
	}
	if len(data) > maxValues {
		return nil, fmt.Errorf("read values: %s has more than %d bytes", name, maxValues)
	}
	return data, nil
}

func printValues(w io.Writer, report *v1alpha1.ValuesReport) error {
	for _, p := range report.Problems {
		text := p.File
		if p.Line > 0 {
			text = fmt.Sprintf("%s:%d", text, p.Line)
		}
		if p.Key != "" {
			text += ": " + p.Key
		}
		if p.Warning {
			text += ": warning"
		}
		text += ": " + p.Message
		if p.Fix != "" {
			text += " (" + p.Fix + ")"
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	if len(report.Problems) > 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, "the chart accepts these values")
	return err
}
