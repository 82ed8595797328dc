package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/kube/internal/sandbox/fakecri"
)

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %s", d))
}

// fakeCRICommand is what a hollow node runs in place of containerd.
func fakeCRICommand() *cobra.Command {
	var socket, record string
	cmd := &cobra.Command{
		Use:    "fake-cri",
		Short:  "Serve a container runtime that only records",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer cancel()
			return fakecri.Serve(ctx, socket, record)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "Unix socket to serve on")
	cmd.Flags().StringVar(&record, "record", "", "file to append each request to, as JSON lines")
	return cmd
}
