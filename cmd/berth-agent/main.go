// Command berth-agent runs on each GPU node; see internal/node/agent/command.
package main

import (
	"fmt"
	"os"

	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/cli/version"
	"github.com/berth-gpu/berth/internal/node/agent/command"
)

func main() {
	root := command.New(command.Deps{Out: os.Stdout, Err: os.Stderr})
	version.AddTo(root)
	usage.Prepare(root)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-agent:", err)
		os.Exit(1)
	}
}
