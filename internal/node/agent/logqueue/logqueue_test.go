package logqueue_test

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
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
	// How often lines are dropped depends on when the writing goroutine runs; each gap is reported in its place.
	next, gaps := 0, 0
	for line := range strings.Lines(text) {
		if _, count, found := strings.Cut(line, "log lines were dropped, since standard error was not read\" count="); found {
			dropped, err := strconv.Atoi(strings.TrimSpace(count))
			if err != nil || dropped <= 0 {
				t.Fatalf("after line %d: %q", next-1, line)
			}
			next, gaps = next+dropped, gaps+1
			continue
		}
		if line != fmt.Sprintf("line %d\n", next) {
			t.Fatalf("line %d is %q", next, line)
		}
		next++
	}
	if next != lines || gaps == 0 {
		t.Errorf("%d of %d lines were written or reported as dropped, in %d reports; want all, in at least one", next, lines, gaps)
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
