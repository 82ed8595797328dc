package command

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/kube/internal/sandbox/fakecri"
)

// fakeCRICommand is the runtime that a hollow node runs instead of containerd.
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
