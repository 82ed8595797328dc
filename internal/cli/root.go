package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/berth-gpu/berth/internal/cli/complete"
	"github.com/berth-gpu/berth/internal/cli/simcmd"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/cli/version"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/spf13/cobra"
)

// Deps are the dependencies of the command.
type Deps struct {
	Out io.Writer
	Err io.Writer
	// Name is the name that the program was called by: berth, or kubectl-berth.
	Name string
	// KubeletDir is the state directory of this machine's kubelet; empty means /var/lib/kubelet. The machine is a node
	// if the directory exists.
	KubeletDir string
	// OpenLibrary opens NVML below a driver root; nil means the libnvidia-ml.so.1 that is there.
	OpenLibrary func(driverRoot string) nvml.Interface
	// SimulatedDriver finds the driver that a simulated machine gets; nil means the one that was built beside this program.
	SimulatedDriver func() (sim.Files, error)
}

func (d Deps) driver() func() (sim.Files, error) {
	if d.SimulatedDriver == nil {
		return simcmd.BuiltFiles
	}
	return d.SimulatedDriver
}

// NewRoot returns the command.
func NewRoot(deps Deps) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Show which GPUs a pod was allocated and who holds each GPU",
		Long: `berth shows which GPUs a pod was allocated, who holds each GPU, and what is wrong with
a node. Each fact comes with the place where it was read.

It reads the objects of the API server, where there is a kubeconfig, and the files of
the node that it runs on. One of the two is enough; what only the other has is left out.`,
		Example: `  berth trace demo                          the GPUs of a pod
  berth trace GPU-5c1f2e9b                  the holders of a GPU
  berth trace --pid 4711                    the GPUs of a process on this node
  berth gpus                                the GPUs of the cluster with their holders
  berth topo node-0                         the links between a node's GPUs
  berth top                                 the utilization of this node's GPUs, live
  berth status                              what each node with GPUs waits for
  berth doctor                              the problems of this node with their fixes
  berth fit -f claim.yaml                   whether a claim or pod would get its devices now
  berth why train-0                         why a pod waits, and what would help
  berth reset 3                             reset a GPU of this node
  berth replay --nodes n.csv --pods p.csv   how much of the GPUs a trace would get allocated
  berth mig plan node-0 all-balanced        what a MIG layout would change
  berth sim create /tmp/node --profile a100x8-40g
                                            a simulated node, to try all of this`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	if deps.Name == "kubectl-berth" {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"}
	}
	root.SetOut(deps.Out)
	root.SetErr(deps.Err)
	version.AddTo(root)
	root.AddCommand(newTraceCommand(deps), newGPUsCommand(deps), newTopoCommand(deps), newMIGCommand(deps),
		newClassesCommand(deps), newValuesCommand(deps), newQuotaCommand(deps), newStatusCommand(deps), newFitCommand(deps), newWhyCommand(deps), newReplayCommand(deps), newTopCommand(deps), newWebCommand(deps), newDoctorCommand(deps), newResetCommand(deps), newUninstallCommand(deps), simcmd.NewCommand(deps.Out, deps.Err, deps.driver()))
	root.AddCommand(complete.NewCommand(), newExitCodesTopic())
	complete.Prepare(root, complete.Deps{Open: openCompletion(deps)})
	usage.Prepare(root)
	return root
}

// Run executes the command with arguments and returns the exit code. It prints errors to deps.Err.
func Run(ctx context.Context, deps Deps, args []string) int {
	root := NewRoot(deps)
	root.SetArgs(args)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	command, err := root.ExecuteContextC(ctx)
	if _, shown := errors.AsType[*shownError](err); err == nil || shown {
		return exitCode(err)
	}
	_, early := errors.AsType[*usage.Error](err)
	wrong, late := errors.AsType[*usageError](err)
	switch {
	case late:
		err = &usage.Error{Text: wrong.text, Command: command.CommandPath()}
	case !started && !early:
		err = &usage.Error{Text: err.Error(), Command: command.CommandPath()}
	}
	fmt.Fprintf(deps.Err, "error: %s\n", term.CleanLines(err.Error()))
	return exitCode(err)
}

// usageError is a wrong usage that only running the command can detect.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// hintError is an error with its fix.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() + "\n" + e.hint }
func (e *hintError) Unwrap() error { return e.err }
