package main

import (
	"regexp"
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
