package evidence_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/stub"
)

func machine(t *testing.T, seed string) *sim.Machine {
	t.Helper()
	m, err := sim.CreateWith(filepath.Join(t.TempDir(), "m"), "a30x4", sim.Options{Seed: seed, NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func scanner(t *testing.T, m *sim.Machine) *nvidia.Adapter {
	t.Helper()
	root := m.Root()
	a := nvidia.New(nvidia.Deps{Library: m.NVML(), Roots: nvidia.Roots{Driver: root, Dev: root,
		Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}})
	t.Cleanup(a.Close)
	return a
}

// agent serves the state of an agent that has this snapshot of the hardware in a simulator's directory.
func agent(t *testing.T, snapshot *gpu.Snapshot, simulated string, vendors ...gpu.Traits) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"node": "node-0", "inventory": snapshot, "simulated": simulated, "vendors": vendors})
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket
}

func healthOf(local *evidence.Local) map[gpu.UUID][]string {
	texts := map[gpu.UUID][]string{}
	for _, fact := range local.Devices {
		if fact.Health != "" {
			texts[fact.UUID] = append(texts[fact.UUID], fact.Health)
		}
	}
	return texts
}

// TestAgentsVerdict checks that the agent's health takes precedence over that of one scan.
func TestAgentsVerdict(t *testing.T) {
	m := machine(t, "verdict")
	hardware := scanner(t, m)
	snapshot, err := hardware.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	judged := snapshot
	judged.GPUs = append([]gpu.GPU(nil), snapshot.GPUs...)
	since := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	verdicts := []gpu.Health{
		{State: gpu.NeedsReset, Causes: []gpu.Cause{{Code: "ECC_DOUBLE_BIT", Since: since}}},
		{State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "XID95", Since: since}}},
		{State: gpu.Degraded, Causes: []gpu.Cause{{Code: "NVLINK_DOWN", Since: since}}},
		{State: gpu.Healthy},
	}
	want := []string{"NeedsReset (ECC_DOUBLE_BIT)", "Unhealthy (XID95)", "Degraded (NVLINK_DOWN)", "Healthy"}
	for i := range verdicts {
		judged.GPUs[i].Health = verdicts[i]
	}
	local := evidence.Places{
		Agent: agent(t, &judged, m.Dir()), Hardware: hardware, HardwareName: "simulator", Simulated: m.Dir(),
	}.Collect(t.Context())
	texts := healthOf(local)
	for i, text := range want {
		device := local.Snapshot.GPUs[i]
		if got := trace.HealthText(device.Health); got != text {
			t.Errorf("GPU %d is %s, want %s", i, got, text)
		}
		if got := texts[device.UUID]; len(got) != 1 || got[0] != text {
			t.Errorf("the facts call GPU %d %q, want %q alone", i, got, text)
		}
	}
}

// TestScanIsJudged checks that, without an agent, the scan's causes determine the health and are shown.
func TestScanIsJudged(t *testing.T) {
	m := machine(t, "judged")
	if err := m.Inject(sim.Fault{GPU: "1", RowRemap: "failed"}); err != nil {
		t.Fatal(err)
	}
	local := evidence.Places{Hardware: scanner(t, m), HardwareName: "simulator", Simulated: m.Dir()}.Collect(t.Context())
	if got := trace.HealthText(local.Snapshot.GPUs[1].Health); !strings.Contains(got, "ROW_REMAP_FAILURE") ||
		strings.HasPrefix(got, "Healthy") {
		t.Errorf("a GPU whose rows cannot be remapped is %q", got)
	}
}

// TestOtherHardware checks that the agent's GPUs are not mixed with those of another simulator.
func TestOtherHardware(t *testing.T) {
	agents, asked := machine(t, "agents"), machine(t, "asked")
	snapshot, err := scanner(t, agents).Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	socket := agent(t, &snapshot, agents.Dir())
	other := evidence.Places{Agent: socket, Hardware: scanner(t, asked), Simulated: asked.Dir()}.Collect(t.Context())
	if other.OfAgent || other.Snapshot.GPUs[0].UUID == snapshot.GPUs[0].UUID {
		t.Errorf("the simulator in %s is taken for the agent's (%v)", asked.Dir(), other.OfAgent)
	}
	same := evidence.Places{Agent: socket, Hardware: scanner(t, agents), Simulated: agents.Dir()}.Collect(t.Context())
	if !same.OfAgent || same.Snapshot.GPUs[0].UUID != snapshot.GPUs[0].UUID {
		t.Error("the agent's own hardware is not taken for it")
	}
	// A path of the agent is one beneath the root directory of its node.
	root, name := filepath.Split(agents.Dir())
	beneath := evidence.Places{Agent: agent(t, &snapshot, "/"+name), HostRoot: root, Hardware: scanner(t, agents), Simulated: agents.Dir()}.Collect(t.Context())
	if !beneath.OfAgent {
		t.Error("the agent's hardware is not found beneath the root of its node")
	}
	// Without --sim, the agent's hardware is the node's, simulated or not.
	node := evidence.Places{Agent: socket, Hardware: scanner(t, asked)}.Collect(t.Context())
	if !node.OfAgent || node.Snapshot.GPUs[0].UUID != snapshot.GPUs[0].UUID {
		t.Error("the node's hardware is not the agent's")
	}
}

// TestVendorsOfTheAgent checks that the names of a vendor that only the agent knows are looked for, and that the scan of this
// program's own vendor says nothing about the GPUs of the other.
func TestVendorsOfTheAgent(t *testing.T) {
	m := machine(t, "vendors")
	dir := t.TempDir()
	write := func(path, content string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "driver"), "1.0")
	write(filepath.Join(dir, "gpu0", "uuid"), "0a-b1")
	write(filepath.Join(dir, "gpu0", "memory"), "1024")
	other := stub.New(dir)
	scan := func(from evidence.Scanner) gpu.Snapshot {
		snapshot, err := from.Scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snapshot
	}
	both := scan(other)
	nvidias := scan(scanner(t, m))
	both.Vendors, both.GPUs = append(both.Vendors, nvidias.Vendors...), append(both.GPUs, nvidias.GPUs...)
	socket := agent(t, &both, m.Dir(), nvidia.Traits(), other.Traits())
	known := trace.Vendors{nvidia.Traits()}
	local := evidence.Places{Agent: socket, Vendors: known, Hardware: scanner(t, m), HardwareName: "library", Simulated: m.Dir()}.Collect(t.Context())
	if len(known) != 1 || len(local.Vendors) != 2 || !local.Vendors.RelevantEnv("EXAMPLE_VISIBLE_DEVICES") {
		t.Errorf("vendors %v of %v", local.Vendors, known)
	}
	if len(local.Partial) != 1 || local.Partial[0] != (trace.Partial{Source: trace.Source{Kind: trace.Hardware, Path: "library"}, Vendor: gpu.NVIDIA}) {
		t.Errorf("%+v lists one vendor only", local.Partial)
	}
	local.Pods = append(local.Pods, trace.PodFact{Source: trace.Source{Kind: trace.Directory}, Ref: trace.Ref{UID: "u"}})
	local.Assignments = append(local.Assignments, trace.AssignmentFact{
		Source: trace.Source{Kind: trace.Checkpoint}, Pod: trace.Ref{UID: "u"}, Container: "main", Resource: "example.com/gpu", IDs: []string{"0a-b1"},
	})
	picture := trace.Join(local.Vendors, local.Evidence)
	if len(picture.Disagreements) > 0 {
		t.Errorf("%+v", picture.Disagreements[0])
	}
	if devices := picture.Pods[0].Containers[0].Devices; len(devices) != 1 || devices[0].UUID != "0a-b1" || devices[0].Fact(trace.FactVendor) != "example" {
		t.Errorf("the pod holds %+v", devices)
	}
}
