// Command berth-agent-stub is berth-agent with one more vendor: the GPUs that internal/hardware/stub reads from a folder, beside
// those of the vendors that Berth knows. The end-to-end tests run it; no release has it.
package main

import (
	"fmt"
	"os"

	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/stub"
	"github.com/berth-gpu/berth/internal/node/agent/command"
)

// folder is the environment variable that names the folder. A flag would not be known to the other commands of berth-agent.
const folder = "BERTH_STUB_DIR"

func main() {
	root := command.New(command.Deps{
		Out: os.Stdout, Err: os.Stderr, Vendors: []hardware.Vendor{stub.New(os.Getenv(folder))},
	})
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-agent-stub:", err)
		os.Exit(1)
	}
}
