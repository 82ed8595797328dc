package main

import (
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/version"
)

// TestVersion checks that --version has the form that the maker of images expects, with Kubernetes' version behind it.
func TestVersion(t *testing.T) {
	var out strings.Builder
	command := newCommand()
	command.SetOut(&out)
	command.SetArgs([]string{"--version"})
	if err := command.Execute(); err != nil {
		t.Fatal(err)
	}
	want := `^berth-scheduler ` + regexp.QuoteMeta(version.Current().String()) + `, Kubernetes v\S+\n$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("--version prints %q, want %s", out.String(), want)
	}
}

// TestBoundHeap: the target is set unless the environment has one.
func TestBoundHeap(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for set, want := range map[bool]int{true: 100, false: gcPercent} {
		boundHeap(func(string) (string, bool) { return "", set })
		if got := debug.SetGCPercent(100); got != want {
			t.Errorf("with GOGC set: %v, the target is %d, want %d", set, got, want)
		}
	}
}
