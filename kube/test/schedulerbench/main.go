// Command schedulerbench measures berth-scheduler beside the stock kube-scheduler. hack/bench-scheduler.sh builds and runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/command"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command.New(programs).ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "schedulerbench:", err)
	}
	return command.ExitCode(err)
}

// programs are those of the directory BIN, by default that of this program.
func programs() (command.Programs, error) {
	self, err := os.Executable()
	if err != nil {
		return command.Programs{}, fmt.Errorf("find this program: %w", err)
	}
	bin := os.Getenv("BIN")
	if bin == "" {
		bin = filepath.Dir(self)
	}
	return command.InDirectory(bin, self)
}
