package complete

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// KubectlScript is the name under which kubectl runs the script for its plugin berth.
const KubectlScript = "kubectl_complete-berth"

// ofKubectl is the script that kubectl runs with the words after "kubectl berth". It prints the answer of the plugin.
const ofKubectl = `#!/bin/sh
# kubectl runs this to complete "kubectl berth". Save it as ` + KubectlScript + ` in a directory of
# PATH, executable.
exec kubectl-berth __complete "$@"
`

// writers returns what writes the script of each shell.
func writers(root *cobra.Command) map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{
		"bash":       func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":        root.GenZshCompletion,
		"fish":       func(w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": root.GenPowerShellCompletionWithDesc,
		"kubectl": func(w io.Writer) error {
			_, err := io.WriteString(w, ofKubectl)
			return err
		},
	}
}

// NewCommand returns the command that prints the scripts. It takes the place of cobra's.
func NewCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell", "kubectl"}
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print a script with which a shell completes commands",
		Long: `Print a script with which a shell completes commands, flags, and the names of pods, nodes, GPUs
and MIG layouts. These names are read from the API server of the kubeconfig, or of --context and
--kubeconfig if they come before on the command line, within 2 seconds; if it does not answer,
the shell suggests nothing.

The script of bash needs the package bash-completion. The script for kubectl, saved as
` + KubectlScript + ` in a directory of PATH and executable, completes "kubectl berth".`,
		Example: `  source <(berth completion bash)           in ~/.bashrc
  source <(berth completion zsh)            in ~/.zshrc
  berth completion fish | source            in ~/.config/fish/config.fish
  berth completion powershell | Out-String | Invoke-Expression
  berth completion kubectl > ~/bin/` + KubectlScript + ` && chmod +x ~/bin/` + KubectlScript,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			return writers(cmd.Root())[args[0]](cmd.OutOrStdout())
		},
	}
}
