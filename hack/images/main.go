// Command berth-images makes the container images of Berth's programs and pushes them to a registry. The module is
// separate so that no program's go.mod names what only this command links.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-gpu/berth/hack/images/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, command.Deps{Out: os.Stdout, Err: os.Stderr}, os.Args[1:])
	stop()
	os.Exit(code)
}
