package devicemanager

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
)

// holders are the holders of each GPU with the places that say so: "claim NAME" and "pod UID".
type holders map[gpu.UUID]map[string][]string

func (h holders) add(id gpu.UUID, holder, place string) {
	if h[id] == nil {
		h[id] = map[string][]string{}
	}
	h[id][holder] = append(h[id][holder], place)
}

// doubles describes the GPUs with more than one holder.
func (h holders) doubles() []string {
	var list []string
	for _, id := range slices.Sorted(maps.Keys(h)) {
		if len(h[id]) > 1 {
			list = append(list, fmt.Sprintf("GPU %s has %d holders: %v", id, len(h[id]), h[id]))
		}
	}
	return list
}

// unrecorded describes the claims whose containers run with GPUs that the ledger or the kubelet's record does not have.
func (h holders) unrecorded() []string {
	var list []string
	for _, id := range slices.Sorted(maps.Keys(h)) {
		for holder, places := range h[id] {
			if strings.HasPrefix(holder, "claim ") && (!slices.Contains(places, "ledger") || !slices.Contains(places, "dra_manager_state")) &&
				slices.ContainsFunc(places, func(place string) bool { return strings.HasPrefix(place, "container of ") }) {
				list = append(list, fmt.Sprintf("GPU %s is used by %s, and only these know it: %v", id, holder, places))
			}
		}
	}
	return list
}

// holders reads who has which GPU: the files of the kubelet's two managers, the device nodes in the running containers, and the
// agent's ledger. Pods that have ended for the kubelet are left out of the device manager's file, which it cleans up later.
func (m *mixed) holders() (holders, error) {
	found := holders{}
	active := map[string]bool{}
	for _, p := range m.GetActivePods() {
		active[string(p.UID)] = true
	}
	if err := m.allocatedToPods(found, active); err != nil {
		return nil, err
	}
	claims, err := prepared.Read("/", m.dir, pool.DefaultDriver)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	for _, claim := range claims {
		for _, device := range claim.Devices {
			if !m.admin[claim.Name] {
				found.add(m.scheduler.gpu(device.Name), "claim "+claim.Name, "dra_manager_state")
			}
		}
	}
	for _, p := range m.pods {
		for _, c := range p.containers {
			for _, node := range c.nodes {
				if !slices.Contains(p.ended, c.id) && !m.admin[strings.TrimPrefix(holderOf(p), "claim ")] {
					found.add(m.nodes[node], holderOf(p), "container of "+p.Name)
				}
			}
		}
	}
	m.mu.Unlock()
	state, err := m.state()
	if err != nil {
		return nil, err
	}
	for _, h := range state.Holdings {
		switch {
		case h.Holder.Kind == gpu.HolderClaim:
			found.add(h.Key.GPU, "claim "+h.Holder.Name, "ledger")
		case h.Holder.Kind == gpu.HolderMaintenance:
			found.add(h.Key.GPU, "MIG change", "ledger")
		case h.Holder.PodUID == "" || active[h.Holder.PodUID]:
			if !h.Pending {
				found.add(h.Key.GPU, "pod "+h.Holder.PodUID, "ledger")
			}
		}
	}
	return found, nil
}

// holderOf is the holder of the devices of a pod's containers.
func holderOf(p *pod) string {
	if len(p.plan.claims) > 0 {
		return "claim " + p.plan.claims[0]
	}
	return "pod " + string(p.UID)
}

// allocatedToPods adds what the device manager's checkpoint lists.
func (m *mixed) allocatedToPods(found holders, active map[string]bool) error {
	blob, err := os.ReadFile(filepath.Join(m.dir, "device-plugins", "kubelet_internal_checkpoint"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	data := checkpoint.New(nil, nil)
	if err := data.UnmarshalCheckpoint(blob); err != nil {
		return err
	}
	entries, _ := data.GetData()
	for _, entry := range entries {
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				if active[entry.PodUID] {
					found.add(gpu.UUID(id), "pod "+entry.PodUID, "kubelet_internal_checkpoint")
				}
			}
		}
	}
	return nil
}

// doubleHolders fails the test when a GPU has two holders, or a container has a GPU that the ledger does not have for its claim. The places
// are read one after the other, so it reads them again before it believes a difference: the pods of the tests do not end by themselves.
// Claims for admin access hold nothing.
func (m *mixed) doubleHolders() {
	m.t.Helper()
	var found []string
	for range 5 {
		var list holders
		m.await("the agent shows its state", func() (err error) { list, err = m.holders(); return err })
		if found = append(list.doubles(), list.unrecorded()...); len(found) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.t.Errorf("the holders of GPUs:\n  %s", strings.Join(found, "\n  "))
}

// oneAPI is a watch for GPUs that are in both APIs.
type oneAPI struct {
	m *mixed
	// reads counts the comparisons.
	reads int
	ended chan struct{}
	stop  chan struct{}
}

// watchOneAPI compares the kubelet's list with the slices, over and over until the test ends, and fails the test when a GPU is in both.
func (m *mixed) watchOneAPI() {
	m.t.Helper()
	w := &oneAPI{m: m, ended: make(chan struct{}), stop: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(time.Millisecond):
				w.compare()
			}
		}
	}()
	m.t.Cleanup(func() {
		close(w.stop)
		<-w.ended
		if w.reads < 100 {
			m.t.Errorf("the two APIs were compared only %d times", w.reads)
		}
		m.t.Logf("compared the two APIs %d times", w.reads)
	})
}

// compare reads the kubelet's list before and after the slices: a GPU that is in both readings of the list and in the slices between them
// was in both APIs when the slices were read, unless the list left it out in between, which takes far longer.
func (w *oneAPI) compare() {
	before := w.m.advertised()
	var sliced []gpu.UUID
	for _, slice := range w.m.scheduler.slices() {
		sliced = append(sliced, pool.GPUs(*slice)...)
	}
	after := w.m.advertised()
	w.reads++
	for _, id := range sliced {
		if before[id] && after[id] {
			w.m.t.Errorf("the kubelet counts GPU %s, and it is in a ResourceSlice", id)
		}
	}
}

// noConflict fails the test for each conflict that the agent has logged since the last call.
func (m *mixed) noConflict() {
	m.t.Helper()
	blob, err := os.ReadFile(filepath.Join(m.dir, "agent.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range bytes.Lines(blob[m.readLog:]) {
		for _, code := range []string{"DEVICE_CONFLICT", "CONTAINER_UNMARKED", "DRA_NOT_ADOPTED", "DRA_NOT_SERVED"} {
			if bytes.Contains(line, []byte("code="+code)) && !bytes.Contains(line, []byte("level=INFO")) {
				m.t.Errorf("the agent reports: %s", line)
			}
		}
	}
	m.readLog = len(blob)
}

// nothingLeaks fails the test when the ledger, the kubelet's record of claims, the CDI specs or the sockets have something that no running
// pod needs.
func (m *mixed) nothingLeaks() {
	m.t.Helper()
	m.await("the ledger has the devices of running pods only", func() error {
		state, err := m.state()
		if err != nil {
			return err
		}
		running := map[string]bool{}
		for _, p := range m.all() {
			running[holderOf(p)] = true
		}
		for _, h := range state.Holdings {
			if !running["pod "+h.Holder.PodUID] && !running["claim "+h.Holder.Name] {
				return fmt.Errorf("%s is held by %s", h.Key, h.Holder)
			}
		}
		claims, err := prepared.Read("/", m.dir, pool.DefaultDriver)
		for _, claim := range claims {
			if !running["claim "+claim.Name] {
				return fmt.Errorf("the kubelet lists claim %s as prepared", claim.Name)
			}
		}
		return err
	})
	for pattern, want := range map[string]int{
		filepath.Join(m.dir, "cdi", "*"): 1, filepath.Join(m.dir, "plugins_registry", "*"): 1, filepath.Join(m.dir, "plugins", pool.DefaultDriver, "*"): 1,
	} {
		// The agent may be writing a file.
		m.await(fmt.Sprintf("%s has %d files", pattern, want), func() error {
			files, err := filepath.Glob(pattern)
			if err == nil && len(files) != want {
				err = fmt.Errorf("they are %v", files)
			}
			return err
		})
	}
}
