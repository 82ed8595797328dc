package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// openPTY returns the two ends of a terminal of 24 lines and 80 columns.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here")
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no /dev/pts here")
	}
	t.Cleanup(func() { slave.Close() })
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// TestSummaryOnATerminal: a terminal of 24 lines gets a summary that fits, in colours unless NO_COLOR is set.
func TestSummaryOnATerminal(t *testing.T) {
	kubeconfig := newFleetAPI(t).serve(t)
	tests := map[string]struct {
		noColour string
		want     bool
	}{
		"colours":  {"", true},
		"NO_COLOR": {"1", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tc.noColour)
			t.Setenv("TERM", "xterm")
			master, slave := openPTY(t)
			read := make(chan string)
			go func() {
				text, _ := io.ReadAll(master) // It ends with an error when the other end is closed.
				read <- string(text)
			}()
			code := Run(t.Context(), Deps{Out: slave, Err: slave, Name: "berth", KubeletDir: "none"}, []string{"gpus", "--summary", "--kubeconfig", kubeconfig})
			slave.Close()
			text := <-read
			if code != ExitOK {
				t.Fatalf("ended with %d: %s", code, text)
			}
			if got := strings.Contains(text, "\x1b["); got != tc.want {
				t.Errorf("colours: %v, want %v", got, tc.want)
			}
			plain := strings.NewReplacer("\x1b[0m", "", "\x1b[1m", "", "\x1b[31m", "", "\x1b[33m", "", "\r\n", "\n").Replace(text)
			lines := strings.Split(strings.TrimSuffix(plain, "\n"), "\n")
			if len(lines) > 23 {
				t.Errorf("%d lines, want at most 23", len(lines))
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > 80 || strings.Contains(line, "\x1b") {
					t.Errorf("more than 80 columns, or another colour: %q", line)
				}
			}
		})
	}
}
