package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cli/topview"
)

// Control sequences that terminals support since the VT100 and xterm.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // alternate screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	goHome      = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// screen is the terminal that top draws on.
type screen interface {
	// size returns the number of rows and columns.
	size() (rows, columns int)
	// keys delivers typed keys until ctx ends.
	keys(ctx context.Context) <-chan byte
	// restore restores the settings of the terminal.
	restore()
}

// topLive draws until q is typed or ctx ends. While the agent does not answer, it shows the error on the screen and
// retries.
func topLive(ctx context.Context, tty screen, out io.Writer, read samplesReader, view *topview.View, interval time.Duration) error {
	defer tty.restore()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	live := &liveTop{view: view, colour: term.Of(out, os.Getenv).Colour}
	view.History = &topview.History{}
	// An error of the first read ends the command.
	if err := live.update(read(ctx)); err != nil {
		return err
	}
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	defer io.WriteString(out, leaveScreen)
	keys, tick := tty.keys(ctx), time.NewTicker(interval)
	defer tick.Stop()
	for {
		rows, columns := tty.size()
		if _, err := io.WriteString(out, live.frame(rows, columns)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key, open := <-keys:
			if open && (key == 'q' || key == 'Q' || key == 3) {
				return nil
			}
			if !open {
				keys = nil // there is no more input; ctx ends the loop
			}
			continue
		case <-tick.C:
		}
		if err := live.update(read(ctx)); err != nil {
			live.trouble = "last samples: " + err.Error()
		}
	}
}

// liveTop is what top shows live.
type liveTop struct {
	view    *topview.View
	colour  bool
	nodes   []*v1alpha1.GPUSamples
	trouble string
}

// update takes what a read returned. It returns an error if there are no samples.
func (l *liveTop) update(nodes []*v1alpha1.GPUSamples, err error) error {
	var unread *unreadError
	if err != nil && !errors.As(err, &unread) {
		return err
	}
	l.trouble = ""
	if unread != nil {
		l.trouble = "not read: " + unread.Error()
	}
	l.nodes = nodes
	l.view.Remember(nodes)
	return nil
}

// head describes what is shown.
func (l *liveTop) head() string {
	if !l.view.Several && len(l.nodes) == 1 {
		one := l.nodes[0]
		return fmt.Sprintf("%s   %d GPUs   measured %.1f s ago   q ends", orElse(one.Node, "this node"), len(one.Items), one.AgeSeconds)
	}
	gpus := 0
	for _, node := range l.nodes {
		gpus += len(node.Items)
	}
	return fmt.Sprintf("%d nodes   %d GPUs   q ends", len(l.nodes), gpus)
}

// frame returns a whole screen: a header, as much of the table as fits, and the last error.
func (l *liveTop) frame(rows, columns int) string {
	out := term.Output{Rows: rows, Columns: columns, Colour: l.colour}
	var table strings.Builder
	_ = l.view.Write(&table, l.nodes, out) // strings.Builder does not fail
	first, _, _ := strings.Cut(l.trouble, "\n")
	lines := append([]string{out.Line(l.head(), term.Heading), out.Line(first, term.Warn)}, strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")...)
	if len(lines) > rows && rows > 0 {
		more := len(lines) - rows + 1
		lines = append(lines[:rows-1:rows-1], out.Line(fmt.Sprintf("%d more lines", more), term.Plain))
	}
	var text strings.Builder
	text.WriteString(goHome)
	for i, line := range lines {
		if i > 0 {
			text.WriteString("\r\n")
		}
		text.WriteString(line + clearLine)
	}
	text.WriteString(clearRest)
	return text.String()
}

// terminal is a real terminal.
type terminal struct {
	in     *os.File
	out    *os.File
	before *unix.Termios
}

// openTerminal returns nil if out is not a terminal. Keys are read without waiting for Enter and are not echoed; ctrl-c
// still sends a signal.
func openTerminal(in *os.File, out io.Writer) *terminal {
	file, ok := out.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	t := &terminal{in: in, out: file}
	before, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return t // the input is not a terminal
	}
	quiet := *before
	quiet.Lflag &^= unix.ICANON | unix.ECHO
	if unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &quiet) == nil {
		t.before = before
	}
	return t
}

func (t *terminal) restore() {
	if t.before != nil {
		// A failure to restore the settings cannot be handled.
		_ = unix.IoctlSetTermios(int(t.in.Fd()), unix.TCSETS, t.before)
	}
}

func (t *terminal) size() (rows, columns int) {
	size, err := unix.IoctlGetWinsize(int(t.out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Row), int(size.Col)
}

// keysTimeout is the timeout of one read of keys, which also bounds how long the reader takes to end.
const keysTimeout = 100 // milliseconds

func (t *terminal) keys(ctx context.Context) <-chan byte {
	keys := make(chan byte)
	if t.before == nil {
		return keys
	}
	go func() {
		defer close(keys)
		for ctx.Err() == nil {
			wait := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}}
			n, err := unix.Poll(wait, keysTimeout)
			if n == 0 || errors.Is(err, unix.EINTR) {
				continue
			}
			var key [1]byte
			if read, readErr := t.in.Read(key[:]); err != nil || readErr != nil || read == 0 {
				return
			}
			select {
			case keys <- key[0]:
			case <-ctx.Done():
			}
		}
	}()
	return keys
}
