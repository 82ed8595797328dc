// Command berth-operator keeps what Berth needs in a cluster; see internal/cluster/operator/command.
package main

import (
	"fmt"
	"os"

	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/cli/version"
	"github.com/berth-gpu/berth/internal/cluster/operator/command"
)

func main() {
	root := command.New(command.Deps{Out: os.Stdout, Err: os.Stderr})
	version.AddTo(root)
	usage.Prepare(root)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-operator:", err)
		os.Exit(1)
	}
}
