package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseCPU(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 700 55 0 0 20 0 1 0 0 0 0"
	tests := map[string]struct {
		stat    string
		want    time.Duration
		wantErr bool
	}{
		"plain":                     {stat: "42 (kube-scheduler)" + rest, want: 7550 * time.Millisecond},
		"a name with a parenthesis": {stat: "42 (a) b)" + rest, want: 7550 * time.Millisecond},
		"too few fields":            {stat: "42 (a) S 1 2 3", wantErr: true},
		"no program":                {stat: "42", wantErr: true},
		"not a number":              {stat: "42 (a)" + strings.Replace(rest, "700", "x", 1), wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseCPU(tc.stat)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("parseCPU = %v, %v; want %v, error: %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestParsePeak(t *testing.T) {
	tests := map[string]struct {
		status  string
		want    int64
		wantErr bool
	}{
		"plain":        {status: "Name:\ta\nVmHWM:\t  123456 kB\nVmRSS:\t 1 kB\n", want: 123456 << 10},
		"absent":       {status: "Name:\ta\n", wantErr: true},
		"not a number": {status: "VmHWM:\t many kB\n", wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parsePeak(tc.status)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("parsePeak = %v, %v; want %v, error: %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestStart(t *testing.T) {
	cores, err := Cores()
	if err != nil {
		t.Fatal(err)
	}
	dir, one := t.TempDir(), cores[len(cores)-1:]
	p, err := Start(dir, "shell", one, "/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status; touch ready; exec sleep 3600")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t.Context(), "the shell", exists(filepath.Join(dir, "ready"))); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	own, err := Cores()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(own, cores) {
		t.Errorf("this process has the cores %v, want %v as before", own, cores)
	}
	if got := strings.Fields(p.Tail()); len(got) != 2 || got[1] != strings.Trim(strings.Join(strings.Fields(fmt.Sprint(one)), ","), "[]") {
		t.Errorf("the shell ran on %q, want %v", got, one)
	}
}

func TestUsed(t *testing.T) {
	dir := t.TempDir()
	p, err := Start(dir, "shell", nil, "/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; touch ready; exec sleep 3600")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if err := p.Wait(t.Context(), "the shell", exists(filepath.Join(dir, "ready"))); err != nil {
		t.Fatal(err)
	}
	used, err := p.Used()
	if err != nil || used.PeakBytes < 64<<10 || used.PeakBytes > 1<<30 || used.CPU == 0 {
		t.Errorf("Used = %+v, %v; want some time and a plausible peak", used, err)
	}
}

func TestWaitReportsTheEnd(t *testing.T) {
	p, err := Start(t.TempDir(), "shell", nil, "/bin/sh", "-c", "echo no such cluster; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = p.Wait(t.Context(), "the shell", func(context.Context) error { return errors.New("not yet") })
	for _, want := range []string{"wait for the shell", "exit status 3", "no such cluster"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// exists returns what fails until there is a file.
func exists(path string) func(context.Context) error {
	return func(context.Context) error { _, err := os.Stat(path); return err }
}
