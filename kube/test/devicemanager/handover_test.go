package devicemanager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// podWith creates a pod with a GPU of the device plugin, and returns it when its container runs, with the GPU.
func (m *mixed) podWith(name string) (*pod, gpu.UUID) {
	m.t.Helper()
	p := m.create(m.pluginPlan(name, 1))
	m.awaitRunning(p)
	m.mu.Lock()
	defer m.mu.Unlock()
	return p, m.nodes[p.containers[0].nodes[0]]
}

// pluginPlan is a pod with GPUs of the device plugin that runs until the test ends it.
func (m *mixed) pluginPlan(name string, gpus int) plan {
	return plan{name: name, main: []step{{name: "main", gpus: gpus, resource: mixedResource}}, life: forever, end: deleted}
}

func (m *mixed) index(id gpu.UUID) int { return slices.Index(m.uuids, id) }

// freeOf returns a GPU of an API that nobody holds.
func (m *mixed) freeOf(dra bool) int {
	m.t.Helper()
	found, err := m.holders()
	if err != nil {
		m.t.Fatal(err)
	}
	for i, id := range m.uuids {
		if m.throughDRA[i] == dra && found[id] == nil {
			return i
		}
	}
	m.t.Fatalf("no free GPU with dra=%v: %v", dra, found)
	return -1
}

// awaitReleased waits until nobody holds a GPU.
func (m *mixed) awaitReleased() {
	m.t.Helper()
	// What the kubelet has allocated and not recorded, because it restarted before that, stays held for the limit of pending grants.
	m.awaitWithin(ledger.DefaultPendingLimit+settles, "no GPU is held", func() error {
		state, err := m.state()
		if err == nil && len(state.Holdings) > 0 {
			err = fmt.Errorf("%v", state.Holdings)
		}
		return err
	})
}

// interruption is what may happen while a GPU waits for its holder.
type interruption struct {
	name string
	do   func(m *mixed)
}

var interruptions = []interruption{
	{"nothing", func(*mixed) {}},
	{"agent restart", (*mixed).restartAgent},
	{"kubelet restart", func(m *mixed) { m.restartKubelet(nil) }},
	{"agent restart, kubelet restart", func(m *mixed) { m.restartAgent(); m.restartKubelet(nil) }},
	{"kubelet restart while no agent runs", func(m *mixed) { m.stop(); m.restartKubelet(nil); m.stop = m.startAgent(m.options) }},
}

// TestHandoverToDRA switches a GPU to DRA while a pod of the device plugin has it. It has no slice entry until the pod has ended.
func TestHandoverToDRA(t *testing.T) {
	m := newMixed(t, "a100x8-40g", 8, 0, 1, 2, 3)
	m.watchOneAPI()
	for round, interrupt := range interruptions {
		p, held := m.podWith(fmt.Sprintf("pod-%d", round))
		free := m.freeOf(false)
		m.throughDRA[m.index(held)], m.throughDRA[free] = true, true
		m.configure()
		m.awaitSettled() // The free one is published, so the agent has read the configuration.
		interrupt.do(m)
		m.awaitSettled()
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if m.scheduler.sliced()[held] != "" {
				t.Fatalf("%s: GPU %s is in a ResourceSlice while pod %s has it", interrupt.name, held, p.Name)
			}
		}
		m.doubleHolders()
		p.kill()
		<-p.finished
		m.awaitReleased()
		m.awaitSettled()
		claim, ok := m.claimPods(6, 1)
		if !ok {
			t.Fatalf("%s: a claim for all GPUs of DRA does not fit", interrupt.name)
		}
		m.awaitRunning(claim.pods[0])
		m.doubleHolders()
		m.end(claim)
		m.awaitReleased()
		m.throughDRA[m.index(held)], m.throughDRA[free] = false, false
		m.configure()
		m.awaitSettled()
		m.noConflict()
	}
	m.nothingLeaks()
}

// TestHandoverToDevicePlugin switches a GPU to the device plugin while a claim has it. It is not advertised until the claim has ended.
func TestHandoverToDevicePlugin(t *testing.T) {
	m := newMixed(t, "a100x8-40g", 8, 0, 1, 2, 3)
	m.watchOneAPI()
	for _, interrupt := range interruptions {
		claim, ok := m.claimPods(1, 2)
		if !ok {
			t.Fatalf("%s: the claim does not fit", interrupt.name)
		}
		for _, p := range claim.pods {
			m.awaitRunning(p)
		}
		held := m.gpusOf(claim.ResourceClaim)[0]
		free := m.freeOf(true)
		m.throughDRA[m.index(held)], m.throughDRA[free] = false, false
		m.configure()
		m.awaitSettled()
		interrupt.do(m)
		m.awaitSettled()
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if m.advertised()[held] {
				t.Fatalf("%s: GPU %s is advertised while claim %s has it", interrupt.name, held, claim.Name)
			}
		}
		if second, ok := m.claimPods(3, 1); ok {
			t.Fatalf("%s: claim %s has %v while only two GPUs are free", interrupt.name, second.Name, m.gpusOf(second.ResourceClaim))
		}
		m.doubleHolders()
		m.end(claim)
		m.awaitSettled()
		p := m.create(m.pluginPlan("pod-of-6", 6))
		m.awaitRunning(p)
		m.doubleHolders()
		p.kill()
		<-p.finished
		m.throughDRA[m.index(held)], m.throughDRA[free] = true, true
		m.configure()
		m.awaitSettled()
		m.noConflict()
	}
	m.nothingLeaks()
}
