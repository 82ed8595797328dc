package workload

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMPS runs a daemon that accepts one client and ends.
func TestMPS(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "control"))
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 1)
	go func() {
		client, err := listener.Accept()
		listener.Close() // Before the client notices its end: a second one must not get into the queue.
		if err != nil {
			heard <- err.Error()
			return
		}
		defer client.Close()
		line, _ := bufio.NewReader(client).ReadString('\n')
		fmt.Fprintln(client, "ready")
		heard <- line
	}()
	var out, errOut bytes.Buffer
	if code := Run([]string{"mps"}, &out, &errOut); code != 1 || out.String() != "ready\n" ||
		!strings.Contains(errOut.String(), "has ended") {
		t.Errorf("want code 1, ready, and a message that the daemon has ended; got code %d, %q and %q", code, out.String(), errOut.String())
	}
	if got, want := <-heard, fmt.Sprintln("client", os.Getuid(), os.Getpid()); got != want {
		t.Errorf("the daemon received %q, want %q", got, want)
	}
	errOut.Reset()
	if code := Run([]string{"mps"}, &out, &errOut); code != 1 || !strings.Contains(errOut.String(), "find the MPS daemon") {
		t.Errorf("without a daemon: want code 1 and the reason, got %d and %q", code, errOut.String())
	}
}
