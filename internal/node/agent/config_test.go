package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/configwatch"
)

// TestEveryConfigFieldIsRead fails for a setting that is read from the file and then not used. The flags, which only
// write fields, do not count.
func TestEveryConfigFieldIsRead(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{"*.go", "*/*.go", "../config/offers.go", "../config/health.go", "../metrics/counterlist.go", "../labels/outputs.go", "../cdi/injection.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	var code strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "command/flags.go" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	fields := reflect.TypeFor[v1alpha1.AgentConfig]()
	for field := range fields.Fields() {
		if name := field.Name; name != "TypeMeta" && !strings.Contains(code.String(), "onfig."+name) {
			t.Errorf("AgentConfig.%s is not used in the agent", name)
		}
	}
}

// TestEditedBeforeTheStart: a file that was edited while no agent ran is in force when the devices are settled first; the last good
// configuration advertises nothing in between. The decision is late on purpose.
func TestEditedBeforeTheStart(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "t4x4")
	b.configure("resourceName: nvidia.com/before\n")
	_, end := b.startUntil()
	before := b.awaitOf("nvidia.com/before", healthy(4))
	end()
	b.configure("resourceName: nvidia.com/after\n")
	settled := make(chan struct{}, 100)
	b.fault = func(step string) error {
		if step == string(allocatable.StepSettle) {
			settled <- struct{}{}
		}
		return nil
	}
	b.configFault = func(step configwatch.Step) error {
		if step == configwatch.StepRead {
			select {
			case <-settled: // The devices are settled without waiting: by which configuration, the kubelet sees.
			case <-time.After(300 * time.Millisecond):
			}
		}
		return nil
	}
	b.start()
	b.awaitOf("nvidia.com/after", healthy(4))
	if after := b.kubelet.State("nvidia.com/before"); after.Accepted != before.Accepted {
		t.Errorf("the last good configuration was registered %d times at the start", after.Accepted-before.Accepted)
	}
}
