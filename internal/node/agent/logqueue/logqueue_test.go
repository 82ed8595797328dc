package logqueue_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/agent/logqueue"
)

// TestFullPipeDoesNotBlock: logging does not block, the queued lines are written in order when the pipe is read, and
// the number of dropped lines is reported.
func TestFullPipeDoesNotBlock(t *testing.T) {
	reader, pipe := io.Pipe()
	log := logqueue.New(pipe)
	const lines = 10000
	began := time.Now()
	for i := range lines {
		fmt.Fprintf(log, "line %d\n", i)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%d lines took %s", lines, took)
	}
	log.Close(0) // it returns although the pipe is not read
	read := make(chan []byte)
	go func() {
		text, _ := io.ReadAll(reader)
		read <- text
	}()
	log.Close(10 * time.Second)
	pipe.Close()
	text := string(<-read)
	got := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range got[:len(got)-1] {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	want := fmt.Sprintf("count=%d", lines-(len(got)-1))
	if last := got[len(got)-1]; !strings.Contains(last, "log lines were dropped") || !strings.HasSuffix(last, want) {
		t.Errorf("the last of %d lines is %q, want the number of those that were dropped, %s", len(got), last, want)
	}
}

// TestCloseWritesQueuedLines: no line is lost at an ordinary end.
func TestCloseWritesQueuedLines(t *testing.T) {
	var out bytes.Buffer
	log := logqueue.New(&out)
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintf(log, "line %d\n", i)
		fmt.Fprintf(&want, "line %d\n", i)
	}
	log.Close(10 * time.Second)
	if out.String() != want.String() {
		t.Errorf("%d bytes were written, want %d", out.Len(), want.Len())
	}
}
