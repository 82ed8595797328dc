package inventory

import (
	"bytes"
	"cmp"
	"log/slog"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestHealthIsLogged: a line for each GPU whose health state differs, and none for the others.
func TestHealthIsLogged(t *testing.T) {
	snapshot := func(states ...gpu.State) *gpu.Snapshot {
		s := &gpu.Snapshot{}
		for i, state := range states {
			g := gpu.GPU{UUID: gpu.UUID("GPU-" + string(rune('a'+i))), Index: i, Health: gpu.Health{State: state}}
			if state != gpu.Healthy {
				g.Health.Causes = []gpu.Cause{{Code: "XID79"}, {Code: "GPU_LOST"}}
			}
			s.GPUs = append(s.GPUs, g)
		}
		return s
	}
	tests := map[string]struct {
		last *gpu.Snapshot
		next *gpu.Snapshot
		want []string
	}{
		"first, healthy": {nil, snapshot(gpu.Healthy), nil},
		"first, faulty": {nil, snapshot(gpu.Healthy, gpu.NeedsReboot), []string{
			`level=WARN msg="GPU health changed" gpu=GPU-b index=1 from=Healthy to=NeedsReboot causes=XID79,GPU_LOST`}},
		"worse": {snapshot(gpu.Degraded), snapshot(gpu.Gone), []string{
			`level=WARN msg="GPU health changed" gpu=GPU-a index=0 from=Degraded to=Gone causes=XID79,GPU_LOST`}},
		"repaired": {snapshot(gpu.Gone), snapshot(gpu.Healthy), []string{
			`level=INFO msg="GPU health changed" gpu=GPU-a index=0 from=Gone to=Healthy causes=""`}},
		"the same": {snapshot(gpu.Gone), snapshot(gpu.Gone), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			m := &merger{Inventory: &Inventory{deps: Deps{Log: slog.New(slog.NewTextHandler(&out, nil))}}}
			m.current.Store(cmp.Or(tc.last, &gpu.Snapshot{}))
			m.publish(tc.next)
			var got []string
			for line := range strings.Lines(out.String()) {
				if _, line, _ = strings.Cut(strings.TrimSpace(line), " "); strings.Contains(line, "GPU health changed") {
					got = append(got, line)
				}
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}
