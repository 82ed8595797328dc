package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// mpsClient simulates a CUDA program for MPS: it connects to the control daemon, prints what it is granted (device,
// pinned_mem_limit, active_thread_percentage, ready) and stays connected until the daemon or the client ends.
func mpsClient(stdout io.Writer) error {
	pipe := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if pipe == "" {
		return errors.New("find the MPS daemon: CUDA_MPS_PIPE_DIRECTORY is not set")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	daemon, err := net.Dial("unix", filepath.Join(pipe, "control"))
	if err != nil {
		return fmt.Errorf("find the MPS daemon: %w", err)
	}
	defer daemon.Close()
	context.AfterFunc(ctx, func() { daemon.Close() })
	if _, err := fmt.Fprintln(daemon, "client", os.Getuid(), os.Getpid()); err != nil {
		return fmt.Errorf("write to the MPS daemon: %w", err)
	}
	_, err = io.Copy(stdout, daemon)
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("the MPS daemon has ended"), err)
}
