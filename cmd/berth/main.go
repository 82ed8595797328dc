// Command berth shows which GPU a pod got, with the source of each fact, and the holders of each GPU. As kubectl-berth
// on the PATH it is a plugin of kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/berth-gpu/berth/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, cli.Deps{Out: os.Stdout, Err: os.Stderr, Name: filepath.Base(os.Args[0])}, os.Args[1:])
	stop()
	os.Exit(code)
}
