package command

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/scheduler"
)

func TestTurns(t *testing.T) {
	var got []string
	for _, kind := range turns([]scheduler.Kind{scheduler.Stock(), scheduler.Ours()}, 3) {
		got = append(got, kind.Name)
	}
	if want := "stock ours ours stock stock ours"; strings.Join(got, " ") != want {
		t.Errorf("order %v, want %s", got, want)
	}
}

func TestRefused(t *testing.T) {
	tests := map[string]struct{ args, want string }{
		"no nodes":     {"compare --nodes 0", "--nodes 0"},
		"too many":     {"compare --pods 200001", "--pods 200001"},
		"no rounds":    {"large --rounds -1", "--rounds -1"},
		"output":       {"compare -o yaml", `-o "yaml"`},
		"load":         {"compare --load triple", `unknown load "triple"`},
		"no requests":  {"compare --qps 0", "--qps 0"},
		"stalled":      {"compare --stalled 0s", "--stalled 0s"},
		"no such pods": {"compare --nodes 1 --pods 9", "9 pods of 1 GPU do not fit"},
		"scheduler":    {"compare --scheduler ours,theirs", `--scheduler "theirs"`},
		"no gangs":     {"compare --load single --scheduler berth-intree", "berth-intree runs loads with gangs only"},
		"no gang":      {"compare --load gangs --pods 9", "9 pods are no whole gangs of 8"},
		"programs":     {"compare --nodes 2", "hack/build.sh schedulers"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := New(func() (Programs, error) {
				if name == "programs" {
					return InDirectory(t.TempDir(), "self")
				}
				return Programs{Self: "/nonexistent"}, nil
			})
			root.SetArgs(append(strings.Fields(tc.args), "--pin=false"))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || ExitCode(err) != 2 {
				t.Errorf("error %v with code %d, want %q and 2", err, ExitCode(err), tc.want)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	tests := map[string]struct {
		err  error
		want int
	}{
		"met":    {nil, 0},
		"missed": {fmt.Errorf("bench: %w", ErrMissed), 1},
		"failed": {errors.New("no API server"), 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ExitCode(tc.err); got != tc.want {
				t.Errorf("ExitCode = %d, want %d", got, tc.want)
			}
		})
	}
}

func TestListLoads(t *testing.T) {
	loads := []load.Load{
		{Name: "a", About: "pods", Rounds: 3, Bars: load.Bars{LeastSpeed: 1.5}},
		{Name: "b", About: "a gang", Rounds: 1, Bars: load.Bars{MostSeconds: 0.5}},
		{Name: "c", About: "gangs", Rounds: 1},
	}
	const want = `  a            pods; rounds: 3; bar: 1.5 times the pods per second of stock
  b            a gang; rounds: 1; bar: refused within 0.5 s
  c            gangs; rounds: 1`
	if got := listLoads(loads); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSuited(t *testing.T) {
	all := []scheduler.Kind{scheduler.Stock(), scheduler.Ours(), scheduler.OursInTree()}
	tests := map[string]struct {
		objects load.Objects
		want    string
	}{
		"gangs":    {objects: load.Objects{Gangs: []load.Gang{{Name: "g"}}}, want: "stock ours berth-intree"},
		"no gangs": {want: "stock ours"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, kind := range suited(all, tc.objects) {
				got = append(got, kind.Name)
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
		})
	}
}
