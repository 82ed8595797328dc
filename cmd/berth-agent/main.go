// Command berth-agent runs on each GPU node; see internal/agent.
package main

import (
	"fmt"
	"os"

	"github.com/berth-gpu/berth/internal/agent"
)

func main() {
	if err := agent.NewCommand(os.Stdout, os.Stderr).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-agent:", err)
		os.Exit(1)
	}
}
