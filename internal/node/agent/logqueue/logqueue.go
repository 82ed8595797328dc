// Package logqueue writes log lines without blocking the goroutine that logs. The agent's standard error is a pipe to
// the container runtime; a runtime that does not read it, such as while it hangs or restarts, would otherwise block
// every goroutine that logs, and with it the path from a fault to the kubelet.
//
// What wakes it: a line. What it writes: lines, in their order, by one goroutine. Write never waits. Lines that exceed
// the capacity are dropped and counted; the count is written as a line when the queue has capacity again.
package logqueue

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// maxLines bounds the lines that wait.
const maxLines = 4096

// Writer is an io.Writer for log lines. Create it with New.
type Writer struct {
	out  io.Writer
	done chan struct{}

	mu      sync.Mutex
	some    *sync.Cond
	waiting [][]byte
	dropped int
	closed  bool
}

// New starts a Writer to out.
func New(out io.Writer) *Writer {
	w := &Writer{out: out, done: make(chan struct{})}
	w.some = sync.NewCond(&w.mu)
	go w.run()
	return w
}

// Write implements io.Writer; it queues one line, always succeeds and never waits for out.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.waiting) >= maxLines {
		w.dropped++
		return len(line), nil
	}
	w.waiting = append(w.waiting, append([]byte(nil), line...))
	w.some.Signal()
	return len(line), nil
}

// Close writes the queued lines, for at most limit. Later lines are dropped.
func (w *Writer) Close(limit time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.some.Signal()
	w.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}

func (w *Writer) run() {
	defer close(w.done)
	for {
		lines, dropped, more := w.take()
		for _, line := range lines {
			// An error of the log cannot be reported.
			_, _ = w.out.Write(line)
		}
		if dropped > 0 {
			fmt.Fprintf(w.out, "level=WARN msg=\"log lines were dropped, since standard error was not read\" count=%d\n", dropped)
		}
		if !more {
			return
		}
	}
}

// take waits for lines; more is false after the last one.
func (w *Writer) take() (lines [][]byte, dropped int, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) == 0 && w.dropped == 0 && !w.closed {
		w.some.Wait()
	}
	lines, dropped = w.waiting, w.dropped
	w.waiting, w.dropped = nil, 0
	return lines, dropped, !w.closed
}
