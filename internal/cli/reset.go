package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/spf13/cobra"
)

// maxResetWait is how long an agent waits at most.
const maxResetWait = 24 * time.Hour

func newResetCommand(deps Deps) *cobra.Command {
	var out output
	var socket string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "reset GPU",
		Short: "Reset a GPU of this node",
		Long: `Ask this node's berth-agent to reset a GPU. It requires root.

The GPU is an index, a UUID or the beginning of one, or a PCI bus ID, as berth gpus prints them.
The GPU must not be in use: the command reports the pods that hold it and the programs that have
it open. With --wait it waits until these have ended.

The agent withdraws the GPU from allocation, closes the driver, resets the GPU, and advertises it
again if it is healthy. A reset destroys the MIG devices of the GPU; the agent creates them again
if a layout requires them.`,
		Example: `  berth reset 3
  berth reset GPU-5f1c0e6a
  berth reset 0000:3b:00.0 --wait 10m          wait for the pods that use it
  berth reset 3 -o json | jq .state`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("reset: name one GPU, by index, UUID or PCI bus ID (berth gpus --node-local lists "+
					"them); got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if wait < 0 {
				return usagef("--wait %s: want a positive duration, as in 10m; leave it out not to wait", wait)
			}
			if wait > maxResetWait {
				return usagef("--wait %s: want at most %s", wait, maxResetWait)
			}
			progress := deps.Out
			if !out.IsTable() {
				progress = deps.Err
			}
			result, err := askReset(cmd.Context(), socket, args[0], wait, func(message string) { fmt.Fprintln(progress, term.Clean(message)) })
			if err != nil {
				return err
			}
			if err := out.print(deps.Out, result, func(io.Writer) error { return nil }); err != nil {
				return err
			}
			if !result.Done {
				return finding(errors.New(term.Clean(result.Error)))
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait until no pod and no program uses the GPU, at most 24h (default: no wait)")
	cmd.Flags().StringVar(&socket, "agent", evidence.DefaultAgent, "the socket of this node's berth-agent")
	out.bind(cmd.Flags())
	return cmd
}

// askReset asks an agent to reset a GPU, and calls step for each step of the reset.
func askReset(ctx context.Context, socket, reference string, wait time.Duration, tell func(string)) (*v1alpha1.GPUReset, error) {
	query := url.Values{"gpu": {reference}, "wait": {wait.String()}}
	response, err := pages.Client{Socket: socket}.Do(ctx, http.MethodPost, "/v1/reset?"+query.Encode(), nil)
	var refused *pages.RefusedError
	switch {
	case errors.As(err, &refused):
		return nil, fmt.Errorf("reset GPU %s: %w", reference, err)
	case err != nil:
		return nil, &hintError{
			fmt.Errorf("reset GPU %s: %w", reference, err),
			"fix: run this as root on a node where berth-agent runs; give --agent SOCKET if its state directory is elsewhere",
		}
	}
	defer response.Body.Close()
	lines := json.NewDecoder(response.Body)
	for {
		var line v1alpha1.GPUResetLine
		if err := lines.Decode(&line); err != nil {
			return nil, &hintError{
				fmt.Errorf("reset GPU %s: the agent's answer ended before the reset did: %w", reference, err),
				"fix: see the agent's log, and the GPU's state with berth gpus --node-local; then try again",
			}
		}
		if line.Step != nil {
			tell(line.Step.Message)
		}
		if line.Result != nil {
			return line.Result, nil
		}
	}
}
