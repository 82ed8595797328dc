// Command berth-sandbox runs a real Kubernetes with simulated GPUs on one machine.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/kube/internal/sandbox/command"
)

func main() {
	err := command.New().ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-sandbox:", err)
	}
	os.Exit(command.ExitCode(err))
}
