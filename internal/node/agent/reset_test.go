package agent

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// TestResetByCommand uses a driver without recovery actions, where an error that needs a reset persists until a reset
// is seen.
func TestResetByCommand(t *testing.T) {
	t.Parallel()
	b := newBench(t, "h100x8")
	b.await(healthy(8))
	id := string(b.uuid(2))
	if err := b.machine.Inject(sim.Fault{GPU: id, XID: 48, Recovery: sim.RecoveryUnsupported}); err != nil {
		t.Fatal(err)
	}
	b.await(healthy(7))
	socket := filepath.Join(b.agent.config.StateDir, pages.Name)
	awaitTrue(t, "an agent on "+socket, func() bool { return answers(t, socket) })
	ask := func(query string) (v1alpha1.GPUReset, []string) {
		t.Helper()
		response, err := pages.Client{Socket: socket}.Do(t.Context(), http.MethodPost, "/v1/reset?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var steps []string
		for lines := json.NewDecoder(response.Body); ; {
			var line v1alpha1.GPUResetLine
			if err := lines.Decode(&line); err != nil {
				t.Fatal(err)
			}
			if line.Result != nil {
				return *line.Result, steps
			}
			steps = append(steps, line.Step.Message)
		}
	}
	if err := b.machine.OpenGPU(id, sim.Opener{PID: 4711, Program: "dcgm-exporter"}); err != nil {
		t.Fatal(err)
	}
	if result, _ := ask("gpu=2"); result.Done || !strings.Contains(result.Error, "process 4711 (dcgm-exporter) has it open") {
		t.Errorf("a GPU that a process uses was reset: %+v", result)
	}
	b.await(healthy(7))
	if err := b.machine.CloseGPU(id, 4711); err != nil {
		t.Fatal(err)
	}
	result, steps := ask("gpu=2&wait=30s")
	if !result.Done || result.UUID != id || result.State != "Healthy" || result.Kind != v1alpha1.KindGPUReset || len(steps) < 3 {
		t.Errorf("got %+v after %q", result, steps)
	}
	b.await(healthy(8))
	if _, err := (pages.Client{Socket: socket}).Do(t.Context(), http.MethodPost, "/v1/reset", bytes.NewReader(nil)); err == nil || !strings.Contains(err.Error(), "no GPU named") {
		t.Errorf("no GPU named: %v", err)
	}
}
