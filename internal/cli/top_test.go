package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/topview"
)

// fakeScreen is a terminal of a given size, with given input.
type fakeScreen struct {
	rows     int
	columns  int
	typed    chan byte
	restored int
}

func (f *fakeScreen) size() (int, int)                 { return f.rows, f.columns }
func (f *fakeScreen) keys(context.Context) <-chan byte { return f.typed }
func (f *fakeScreen) restore()                         { f.restored++ }

func oneGPU(busy float64) *v1alpha1.GPUSamples {
	return &v1alpha1.GPUSamples{Node: "node-0", AgeSeconds: 0.25, Items: []v1alpha1.GPUSample{
		{Index: 0, Product: "H100", Health: "Healthy", Utilization: &busy},
	}}
}

func TestTopLive(t *testing.T) {
	const whole = "\x1b[Hnode-0   1 GPUs   measured 0.2 s ago   q ends\x1b[K\r\n%s\x1b[K\r\n" +
		"INDEX   HEALTH    HELD BY   UTIL   HISTORY      MEMORY   TEMP   POWER   MODEL\x1b[K\r\n" +
		"0       Healthy   -          %s        -      -       -   H100\x1b[K\x1b[J"
	const first, second, third = "10%            ▁", "11%           ▁▁", "12%           ▁▁"
	gone := errors.New("read samples: connection refused\nfix: see")
	tests := map[string]struct {
		reads []error // results of the reads after the first, one per second
		end   func(f *fakeScreen, stop func())
		want  string
	}{
		"q": {[]error{nil}, func(f *fakeScreen, _ func()) { f.typed <- 'q' },
			fmt.Sprintf(whole, "", first) + fmt.Sprintf(whole, "", second)},
		"ctrl-c is a signal": {[]error{nil}, func(_ *fakeScreen, stop func()) { stop() },
			fmt.Sprintf(whole, "", first) + fmt.Sprintf(whole, "", second)},
		"another key draws again": {nil, func(f *fakeScreen, _ func()) { f.typed <- 'x'; f.typed <- 'q' },
			fmt.Sprintf(whole, "", first) + fmt.Sprintf(whole, "", first)},
		"nobody types": {nil, func(f *fakeScreen, stop func()) { close(f.typed); synctest.Wait(); stop() },
			fmt.Sprintf(whole, "", first) + fmt.Sprintf(whole, "", first)},
		"the agent is away for a while": {[]error{gone, nil}, func(f *fakeScreen, _ func()) { f.typed <- 'q' },
			fmt.Sprintf(whole, "", first) + fmt.Sprintf(whole, "last samples: read samples: connection refused", first) + fmt.Sprintf(whole, "", third)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				tty := &fakeScreen{rows: 24, columns: 100, typed: make(chan byte)}
				looks := 0
				read := func(context.Context) ([]*v1alpha1.GPUSamples, error) {
					looks++
					if looks > 1 {
						if err := tc.reads[looks-2]; err != nil {
							return nil, err
						}
					}
					return []*v1alpha1.GPUSamples{oneGPU(float64(9+looks) / 100)}, nil
				}
				var out strings.Builder
				done := make(chan error, 1)
				go func() { done <- topLive(ctx, tty, &out, read, &topview.View{}, time.Second) }()
				time.Sleep(time.Duration(len(tc.reads))*time.Second + time.Millisecond)
				tc.end(tty, stop)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if want := enterScreen + tc.want + leaveScreen; out.String() != want {
					t.Errorf("drew\n%q, want\n%q", out.String(), want)
				}
				if tty.restored != 1 {
					t.Errorf("the terminal was restored %d times, want once", tty.restored)
				}
			})
		})
	}
}

// TestTopLiveNeedsAFirstLook checks that a first read that fails ends the command and leaves the screen unchanged.
func TestTopLiveNeedsAFirstLook(t *testing.T) {
	tty := &fakeScreen{typed: make(chan byte)}
	var out strings.Builder
	gone := errors.New("gone")
	read := func(context.Context) ([]*v1alpha1.GPUSamples, error) { return nil, gone }
	err := topLive(t.Context(), tty, &out, read, &topview.View{}, time.Second)
	if !errors.Is(err, gone) || out.Len() > 0 || tty.restored != 1 {
		t.Errorf("error %v, drew %q, restored %d; want gone, nothing, once", err, out.String(), tty.restored)
	}
}

// TestFrameFits checks that a frame has at most the rows and columns of the screen.
func TestFrameFits(t *testing.T) {
	samples := oneGPU(0.5)
	for i := range 40 {
		samples.Items = append(samples.Items, v1alpha1.GPUSample{Index: i + 1, Product: "Größe", Health: "Healthy\x1b[2J"})
	}
	for _, size := range [][2]int{{10, 30}, {3, 10}, {24, 200}, {1, 1}} {
		live := liveTop{view: &topview.View{History: &topview.History{}}, nodes: []*v1alpha1.GPUSamples{samples}}
		text := live.frame(size[0], size[1])
		lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, goHome), clearRest), "\r\n")
		if len(lines) > size[0] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, line := range lines {
			plain := strings.TrimSuffix(line, clearLine)
			if n := len([]rune(plain)); n > size[1] || strings.Contains(plain, "\x1b") {
				t.Errorf("%v: line %q is too long or draws by itself", size, plain)
			}
		}
	}
}

func TestOpenTerminalWantsOne(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if openTerminal(file, file) != nil || openTerminal(file, &strings.Builder{}) != nil {
		t.Error("a file was taken for a terminal")
	}
}

// TestTerminal uses a real terminal: keys are read without Enter, and its settings are restored.
func TestTerminal(t *testing.T) {
	master, slave := openPTY(t)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 7, Col: 50}); err != nil {
		t.Fatal(err)
	}
	tty := openTerminal(slave, slave)
	if tty == nil {
		t.Fatal("a terminal was not taken for one")
	}
	if rows, columns := tty.size(); rows != 7 || columns != 50 {
		t.Errorf("size %d, %d; want 7, 50", rows, columns)
	}
	ctx, stop := context.WithCancel(t.Context())
	keys := tty.keys(ctx)
	if _, err := master.Write([]byte("q")); err != nil {
		t.Fatal(err)
	}
	if key := <-keys; key != 'q' {
		t.Errorf("read %q, want q", key)
	}
	stop()
	if _, open := <-keys; open {
		t.Error("the reader goes on after the end")
	}
	tty.restore()
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was (%v)", err)
	}
}
