package tools

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
)

// MPSClient simulates a CUDA program that uses MPS: it connects to the daemon in CUDA_MPS_PIPE_DIRECTORY, prints what
// it is granted (device, pinned_mem_limit, active_thread_percentage, ready) and stays connected until the daemon ends,
// which gives exit status 1. With -once it exits as soon as it is ready. With -uid it connects as that user.
func MPSClient(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mps-client", flag.ContinueOnError)
	flags.SetOutput(stderr)
	uid := flags.Int("uid", os.Getuid(), "connect as this user ID")
	once := flags.Bool("once", false, "exit as soon as the client is ready")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	conn, err := net.Dial("unix", filepath.Join(mpsPipeDir(), mpsSocket))
	if err != nil {
		fmt.Fprintf(stderr, "no MPS control daemon: %v\n", err)
		return 1
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "client", *uid, os.Getpid()); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		fmt.Fprintln(stdout, lines.Text())
		if *once && lines.Text() == "ready" {
			return 0
		}
	}
	fmt.Fprintln(stderr, "the MPS server has gone")
	return 1
}
