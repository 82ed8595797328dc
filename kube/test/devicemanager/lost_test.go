package devicemanager

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestLostLedger prepares 20 claims on a node with 16 GPUs: 16 that each have a GPU, because no two claims can have the same one, and 4
// for admin access, which hold nothing. Then the ledger's file is lost or damaged while no agent runs. The next agent adopts all 16 from
// the kubelet's record, shows no orphan, holds nothing for admin access, and refuses no further pod of any claim.
func TestLostLedger(t *testing.T) {
	const gpus, admins = 16, 4
	all := make([]int, gpus)
	for i := range all {
		all[i] = i
	}
	m := newMixed(t, "a100x16", gpus, all...)
	var claims []*claimed
	alone := m.oneGPU(true)
	m.awaitRunning(alone.pods[0])
	m.restartAgent()
	m.awaitSettled()
	m.checkAdopted(0)
	m.end(alone)
	for range gpus - 1 {
		claims = append(claims, m.oneGPU(false))
	}
	for range admins {
		claims = append(claims, m.oneGPU(true))
	}
	for _, c := range claims {
		m.awaitRunning(c.pods[0])
	}
	path := filepath.Join(m.dir, "state", ledger.File)
	for _, test := range []struct {
		name   string
		damage func(blob []byte) error
		held   int
	}{
		{"nothing is damaged", func([]byte) error { return nil }, gpus - 1},
		{"lost", func([]byte) error { return os.Remove(path) }, gpus - 1},
		{"cut in half", func(blob []byte) error { return os.WriteFile(path, blob[:len(blob)/2], 0o600) }, gpus - 1},
		{"empty", func([]byte) error { return os.WriteFile(path, nil, 0o600) }, gpus - 1},
		{"a byte changed", func(blob []byte) error {
			return os.WriteFile(path, bytes.Replace(blob, []byte(`"claim-3"`), []byte(`"claim-4"`), 1), 0o600)
		}, gpus - 1},
		{"lost, with all GPUs held", func([]byte) error { return os.Remove(path) }, gpus},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer m.within(t)()
			if len(claims) < test.held+admins {
				claims = append(claims, m.oneGPU(false))
				m.awaitRunning(claims[len(claims)-1].pods[0])
			}
			m.stop()
			blob, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := test.damage(blob); err != nil {
				t.Fatal(err)
			}
			m.stop = m.startAgent(m.options)
			m.awaitSettled()
			m.checkAdopted(test.held)
			// A restart of the kubelet makes it call again for a further pod of a claim.
			m.restartKubelet(nil)
			m.awaitSettled()
			for _, c := range claims {
				m.share(c)
			}
			for _, c := range claims {
				m.awaitRunning(c.pods[len(c.pods)-1])
			}
			m.checkAdopted(test.held)
			m.doubleHolders()
			m.noConflict()
			m.noRefusal()
		})
	}
	for _, c := range claims {
		m.end(c)
	}
	m.awaitReleased()
	m.nothingLeaks()
}

// within reports to a subtest until the returned function is called.
func (m *mixed) within(t testing.TB) (leave func()) {
	outer := m.t
	m.t, m.scheduler.t = t, t
	return func() { m.t, m.scheduler.t = outer, outer }
}

// oneGPU creates a claim for a GPU, or for admin access to one, with a pod.
func (m *mixed) oneGPU(admin bool) *claimed {
	m.t.Helper()
	c, ok := m.claimPodsFor(1, 1, admin)
	if !ok {
		m.t.Fatal("the claim does not fit")
	}
	return c
}

// share adds a pod that uses a prepared claim.
func (m *mixed) share(c *claimed) {
	m.t.Helper()
	p := newPod(plan{name: fmt.Sprintf("%s-pod-%d", c.Name, len(c.pods)), main: []step{{name: "main"}}, life: forever, end: deleted, claims: []string{c.Name}})
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	updated, err := m.client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(context.Background(), c.ResourceClaim, metav1.UpdateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	c.ResourceClaim, c.pods = updated, append(c.pods, p)
	m.cluster.trySchedule(p.Pod, 0, 0)
	m.receive(p)
}

// checkAdopted fails the test unless the ledger has a number of holdings, each of a claim that holds GPUs.
func (m *mixed) checkAdopted(held int) {
	m.t.Helper()
	state, err := m.state()
	if err != nil {
		m.t.Fatal(err)
	}
	if len(state.Holdings) != held {
		m.t.Errorf("the ledger has %d holdings, want %d: %v", len(state.Holdings), held, state.Holdings)
	}
	for _, h := range state.Holdings {
		if h.Holder.Kind != gpu.HolderClaim || m.admin[h.Holder.Name] {
			m.t.Errorf("%s is held by %s", h.Key, h.Holder)
		}
	}
}

// noRefusal fails the test for each prepare that the agent has refused.
func (m *mixed) noRefusal() {
	m.t.Helper()
	blob, err := os.ReadFile(filepath.Join(m.dir, "agent.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range bytes.Lines(blob) {
		if bytes.Contains(line, []byte("Refused a call for a claim")) {
			m.t.Errorf("%s", line)
		}
	}
}
