package simcmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// noDriver is for machines whose library and programs no test opens.
func noDriver() (sim.Files, error) { return sim.Files{}, nil }

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sim": func() {
			command := NewCommand(os.Stdout, os.Stderr, noDriver)
			command.SilenceUsage = true
			usage.Prepare(command)
			if command.Execute() != nil {
				os.Exit(1)
			}
		},
	})
}

// TestScripts runs the commands as users type them.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", UpdateScripts: golden.Update()})
}

// TestShowJSON checks that the object is the description, with its version.
func TestShowJSON(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	machine, err := sim.CreateWith(dir, "t4x4", sim.Options{NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	command := NewCommand(&out, &out, noDriver)
	command.SetArgs([]string{"show", dir, "-o", "json"})
	if err := command.Execute(); err != nil {
		t.Fatal(err)
	}
	var got sim.Description
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || got.APIVersion != "berth.dev/v1alpha1" || got.Kind != "SimulatedMachine" {
		t.Errorf("%s %s (-want +got):\n%s", got.APIVersion, got.Kind, diff)
	}
}

// TestHelpHasExamples checks that the help of each command has examples.
func TestHelpHasExamples(t *testing.T) {
	for _, command := range NewCommand(os.Stdout, os.Stderr, noDriver).Commands() {
		if !strings.Contains(command.Example, "berth sim "+command.Name()) {
			t.Errorf("berth sim %s has no example", command.Name())
		}
	}
}
