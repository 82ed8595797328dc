package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/cuda"
	"github.com/berth-gpu/berth/internal/node/validate"
)

// terminationLog is the file that the kubelet gives each container for its termination message.
const terminationLog = "/dev/termination-log"

const validateTimeout = 30 * time.Second

// validateFlags are the flags of the command.
type validateFlags struct {
	validate.Options
	result   string
	format   string
	procRoot string
}

// newValidateCommand returns the command. simulated returns the value of --sim.
func newValidateCommand(simulated func() string) *cobra.Command {
	f := &validateFlags{}
	cmd := &cobra.Command{
		Use:   "validate --expect N",
		Short: "Check that the GPUs of this container can be used",
		Long: `Check that the GPUs of this container can be used, in the steps that a program takes
before it computes:

  device nodes     those of the requested devices are there and can be opened
  foreign devices  no other GPU of the node can be opened
  library          libcuda.so.1 is loaded
  version          kernel module and library are of the same version
  cuInit           CUDA starts
  device count     CUDA shows the requested number of devices
  compute          each device adds two vectors, with a kernel in PTX; no CUDA image is needed

The first step that fails ends the check, with a code (docs/problems.md) and evidence. A
call that hangs ends it at the step's limit. The exit code is 0 if all steps passed, else 1.

The result is a JSON object of kind ValidationResult. It is also written to --result, by
default the termination message of the container, in at most 4096 bytes. Of several MIG
devices CUDA shows a process one; only that one computes.`,
		Example: `  # In a container that requests 8 GPUs
  berth-agent validate --expect 8 --resource nvidia.com/gpu

  # As JSON, and into a file
  berth-agent validate --expect 1 -o json --result /tmp/result.json

  # In a container of a simulated machine, which finds /proc/driver of the machine elsewhere
  berth-agent validate --expect 8 --proc-root /host/root

  # On all GPUs of a simulated machine
  berth-agent validate --expect 8 --sim /tmp/gpus`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			result := validate.Run(cmd.Context(), f.deps(simulated()), f.Options)
			return errors.Join(validate.Error(result), f.write(result, cmd.Flags().Changed("result")), f.print(cmd.OutOrStdout(), result))
		},
	}
	set := cmd.Flags()
	set.IntVar(&f.Expect, "expect", 0, "the number of GPUs or MIG devices that the container requested (`N`); replicas of one GPU count once")
	set.StringVar(&f.Resource, "resource", "", "the resource `NAME` under which they were requested, for the result")
	set.StringVar(&f.result, "result", terminationLog, "write the result as JSON to `FILE` (the default only where it exists)")
	set.DurationVar(&f.Timeout, "timeout", validateTimeout, "end the check after `DURATION`")
	set.StringVar(&f.procRoot, "proc-root", "", "read /proc/driver below `DIR`, for simulated hardware")
	set.StringVarP(&f.format, "output", "o", "table", "print as `FORMAT`: table or json")
	return cmd
}

func (f *validateFlags) check() error {
	switch {
	case f.Expect < 1:
		return fmt.Errorf("--expect %d: want the number of GPUs or MIG devices that the container requested, for example: berth-agent validate --expect 8", f.Expect)
	case f.Timeout <= 0:
		return fmt.Errorf("--timeout %s: want a positive duration, such as %s", f.Timeout, validateTimeout)
	case f.format != "table" && f.format != "json":
		return fmt.Errorf("output format %q does not exist: use -o table or -o json", f.format)
	}
	return nil
}

// deps connects the steps with this container, or with a simulated machine as a whole.
func (f *validateFlags) deps(simulated string) validate.Deps {
	host, root := validate.Host{ProcRoot: f.procRoot}, ""
	if simulated != "" {
		root = filepath.Join(simulated, "root") // as of berth sim create
		host = validate.Host{DevRoot: root, ProcRoot: root}
	}
	return validate.Deps{
		Files: host,
		Load:  func() (validate.Library, error) { return loadLibrary(root) },
	}
}

// loadLibrary loads the library as programs do: by its name, which the dynamic loader looks up. The folders are those in which a driver is
// mounted into containers whose loader does not search them; below a root they are the only ones.
func loadLibrary(root string) (validate.Library, error) {
	var failed []error
	if root == "" {
		library, err := cuda.Open(cuda.LibraryName)
		if err == nil {
			return library, nil
		}
		failed, root = append(failed, err), "/"
	}
	for _, folder := range []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "usr/local/nvidia/lib64",
	} {
		file := filepath.Join(root, folder, cuda.LibraryName)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		library, err := cuda.Open(file)
		if err == nil {
			return library, nil
		}
		failed = append(failed, err)
	}
	if len(failed) == 0 {
		return nil, fmt.Errorf("%s is in none of the usual folders below %s", cuda.LibraryName, root)
	}
	return nil, errors.Join(failed...)
}

// write writes the result to the file. The default is not made: outside of a container there is none.
func (f *validateFlags) write(result *v1alpha1.ValidationResult, wanted bool) error {
	if f.result == "" {
		return nil
	}
	text, err := validate.Message(result, v1alpha1.MaxValidationResult)
	if err != nil {
		return err
	}
	mode := os.O_WRONLY | os.O_TRUNC
	if wanted {
		mode |= os.O_CREATE
	}
	file, err := os.OpenFile(f.result, mode, 0o644)
	if !wanted && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write result to %s: %w", f.result, err)
	}
	return nil
}

func (f *validateFlags) print(out io.Writer, result *v1alpha1.ValidationResult) error {
	if f.format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tOUTCOME\tMS\tEVIDENCE")
	for _, step := range result.Steps {
		evidence := step.Evidence
		if step.Outcome == v1alpha1.ValidationFailed {
			evidence = result.Code + ": " + result.Evidence
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", step.Name, step.Outcome, step.Milliseconds, evidence)
	}
	return w.Flush()
}
