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

// MPSClient is a CUDA program as far as MPS is concerned: it connects to the daemon in CUDA_MPS_PIPE_DIRECTORY, prints
// what it is granted (device, pinned_mem_limit, active_thread_percentage, ready) and stays until the daemon goes, which
// is status 1, or with -once ends at once. With -uid it says that it is that user.
func MPSClient(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mps-client", flag.ContinueOnError)
	flags.SetOutput(stderr)
	uid := flags.Int("uid", os.Getuid(), "the user that it says it is")
	once := flags.Bool("once", false, "end once it is granted its place")
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
