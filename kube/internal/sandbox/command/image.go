package command

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/kube/internal/sandbox/image"
)

func imageCommand() *cobra.Command {
	var bin, out string
	cmd := &cobra.Command{
		Use:   "agent-image",
		Short: "Write the agent's image as a tarball (an OCI layout)",
		Example: `  berth-sandbox agent-image -o berth-agent.tar
  ctr -n k8s.io image import berth-agent.tar`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bin == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find the agent's programs: %w", err)
				}
				bin = filepath.Dir(self)
			}
			spec, err := image.Agent(bin)
			if err != nil {
				return err
			}
			if err := image.WriteFile(out, spec); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s as %s\n", spec.Name, out)
			return err
		},
	}
	cmd.Flags().StringVar(&bin, "bin", "", "directory of berth-agent and berth-cdi-hook (default: the directory of berth-sandbox)")
	cmd.Flags().StringVarP(&out, "output", "o", "berth-agent.tar", "the tarball")
	return cmd
}
