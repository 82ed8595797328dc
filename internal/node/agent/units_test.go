package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestLostUnitsKeepHeldDevices damages the file with the use of each GPU, or replaces it by one of a newer Berth, while
// a pod has a time-sliced replica. The use of the GPU must not change before the pod has ended.
func TestLostUnitsKeepHeldDevices(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func([]byte) []byte{
		"damaged": func(b []byte) []byte { return b[:len(b)-9] },
		"newer":   func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newIdleBench(t, "t4x4")
			b.configure("standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 4, timeSlice: long, resourceName: nvidia.com/gpu.shared}}]\n")
			_, end := b.startUntil()
			b.awaitOf("nvidia.com/gpu.shared", healthy(4))
			b.awaitSlice(1, "Long")
			held := string(b.uuid(1)) + "::2"
			if _, err := b.kubelet.Allocate(t.Context(), "nvidia.com/gpu.shared", []string{held}); err != nil {
				t.Fatal(err)
			}
			end()

			path := filepath.Join(b.dir, "state", allocatable.FileName)
			blob, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, spoil(blob), 0o600); err != nil {
				t.Fatal(err)
			}
			b.configure("standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: mps, replicas: 4, resourceName: nvidia.com/gpu.shared}}]\n")
			b.supervise()
			b.agent = b.start()
			awaitTrue(t, "units", func() bool { return len(b.agent.devices.allocatable.Units()) == 4 })
			unit := b.agent.devices.allocatable.Units()[1]
			if unit.Use.Mode == offer.MPS || !strings.Contains(unit.Draining, "waits for") {
				t.Fatalf("the held GPU is %v, draining %q; want the previous use until it is free", unit.Use, unit.Draining)
			}
			// The replica that is held stays listed, and nothing more is allocated beside it.
			b.awaitOf("nvidia.com/gpu.shared", func(s fakekubelet.State) bool {
				return len(s.Healthy) == 0 && slices.Contains(s.Unhealthy, held)
			})
			b.awaitOf("nvidia.com/gpu", healthy(3))
			b.awaitSlice(1, "Long") // The time slice of a GPU in use is not changed.
			awaitTrue(t, "the problem", func() bool { return hasProblem(b.agent, "STATE_") })
		})
	}
}

// TestLostUnitsKeepDaemons does the same with an MPS replica: its daemon continues although time slicing is wanted,
// because its end would end the clients.
func TestLostUnitsKeepDaemons(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "t4x4")
	b.supervise()
	b.configure("standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: mps, replicas: 4, resourceName: nvidia.com/gpu.shared}}]\n")
	first, end := b.startUntil()
	b.awaitOf("nvidia.com/gpu.shared", healthy(4))
	if _, err := b.kubelet.Allocate(t.Context(), "nvidia.com/gpu.shared", []string{string(b.uuid(1)) + "::0"}); err != nil {
		t.Fatal(err)
	}
	before, _ := first.changes.mps.Status(b.uuid(1))
	end()
	if err := os.WriteFile(filepath.Join(b.dir, "state", allocatable.FileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.configure("standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 4, resourceName: nvidia.com/gpu.shared}}]\n")
	b.agent = b.start()
	awaitTrue(t, "a set of daemons that was sent", func() bool {
		return len(b.agent.devices.allocatable.Units()) == 4 && b.agent.changes.mps.Unready(b.uuid(1)) == ""
	})
	statuses, err := (&mps.Client{Socket: mps.SocketPath(filepath.Join(b.dir, "mps"))}).Status(t.Context())
	if err != nil || len(statuses) != 1 || statuses[0].PID != before.PID || statuses[0].Limits != before.Limits {
		t.Errorf("daemons %+v, %v; want the one that served before: %+v", statuses, err, before)
	}
	if unit := b.agent.devices.allocatable.Units()[1]; unit.Use.Mode != offer.Unknown {
		t.Errorf("the held GPU is %v", unit.Use)
	}
}

func hasProblem(a *Agent, code string) bool {
	for _, cause := range a.reports.list.All() {
		if strings.HasPrefix(cause.Code, code) {
			return true
		}
	}
	return false
}

// TestLostSlicesAreSetAgain checks that each GPU gets the wanted time slice when the record of the slices is lost.
func TestLostSlicesAreSetAgain(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "t4x4")
	b.configure("standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 2, timeSlice: short}}]\n")
	_, end := b.startUntil()
	b.awaitSlice(1, "Short")
	end()
	path := filepath.Join(b.dir, "state", timeslice.FileName)
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.configure("standalone: true\ngpus: [{select: {index: [2]}, sharing: {mode: timeSlicing, replicas: 2, timeSlice: short}}]\n")
	b.agent = b.start()
	b.awaitSlice(1, "Default")
	b.awaitSlice(2, "Short")
}
