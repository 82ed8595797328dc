package devicemanager

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// envSteps is the number of random steps; 1,000 without it, and 20,000 with BERTH_SOAK.
const envSteps = "BERTH_STEPS"

// walk makes random steps on a node.
type walk struct {
	*mixed
	random *rand.Rand

	// mu guards what the operations of a step change at the same time.
	mu     sync.Mutex
	claims []*claimed
	plain  []*pod
	made   int
	// calm means that the next step begins when everything has settled.
	calm   bool
	counts map[string]int
	trace  []string
}

func (w *walk) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// operation is a part of a step. Two that restart something, or that choose from the same list, are not made at the same time.
type operation struct {
	name  string
	group string
	// weight is how often it is chosen.
	weight int
	do     func(w *walk, random *rand.Rand)
}

var operations = []operation{
	{"create a claim", "claims", 300, (*walk).createClaim},
	{"end a claim", "claims", 270, (*walk).endClaim},
	{"create a pod", "pods", 180, (*walk).createPod},
	{"end a pod", "pods", 160, (*walk).endPod},
	{"switch APIs", "config", 25, (*walk).switchAPI},
	{"change a MIG layout", "config", 10, (*walk).changeLayout},
	{"restart the agent", "restart", 5, func(w *walk, _ *rand.Rand) { w.restartAgent() }},
	{"restart the kubelet", "restart", 5, func(w *walk, _ *rand.Rand) { w.restartKubelet(nil) }},
	{"restart the kubelet while no agent runs", "restart", 5, func(w *walk, _ *rand.Rand) {
		w.stop()
		w.restartKubelet(nil)
		w.stop = w.startAgent(w.options)
	}},
	{"inject or clear a fault", "faults", 15, (*walk).fault},
	{"settle", "settle", 8, func(w *walk, _ *rand.Rand) { w.calm = true }},
}

func choose(random *rand.Rand) operation {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := random.IntN(total)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			return o
		}
	}
	return operations[0]
}

// createClaim creates a claim for one to three GPUs with one or two pods, if it fits.
func (w *walk) createClaim(random *rand.Rand) {
	gpus, pods := 1+random.IntN(3), 1+random.IntN(2)
	c, ok := w.claimPods(gpus, pods)
	if !ok {
		w.count("claims that did not fit")
		return
	}
	w.mu.Lock()
	w.claims = append(w.claims, c)
	w.mu.Unlock()
}

// endClaim ends a claim with its pods, or one of its pods.
func (w *walk) endClaim(random *rand.Rand) {
	w.mu.Lock()
	if len(w.claims) == 0 {
		w.mu.Unlock()
		return
	}
	i := random.IntN(len(w.claims))
	c := w.claims[i]
	one := len(c.pods) > 1 && random.IntN(2) == 0
	if !one {
		w.claims = slices.Delete(w.claims, i, i+1)
	}
	w.mu.Unlock()
	if one {
		p := c.pods[0]
		p.kill()
		<-p.finished
		c.pods = c.pods[1:]
		return
	}
	w.end(c)
}

// createPod creates a pod with one or two GPUs of the device plugin, if it fits.
func (w *walk) createPod(random *rand.Rand) {
	w.mu.Lock()
	w.made++
	p := newPod(w.pluginPlan(fmt.Sprintf("pod-%d", w.made), 1+random.IntN(2)))
	w.mu.Unlock()
	if !w.cluster.trySchedule(p.Pod, p.plan.counted(), w.capacity()) {
		w.count("pods that did not fit")
		return
	}
	w.receive(p)
	w.mu.Lock()
	w.plain = append(w.plain, p)
	w.mu.Unlock()
}

func (w *walk) endPod(random *rand.Rand) {
	w.mu.Lock()
	if len(w.plain) == 0 {
		w.mu.Unlock()
		return
	}
	i := random.IntN(len(w.plain))
	p := w.plain[i]
	w.plain = slices.Delete(w.plain, i, i+1)
	w.mu.Unlock()
	p.kill()
	<-p.finished
}

// switchAPI switches one or two GPUs to the other API.
func (w *walk) switchAPI(random *rand.Rand) {
	for range 1 + random.IntN(2) {
		i := random.IntN(len(w.throughDRA))
		w.throughDRA[i] = !w.throughDRA[i]
	}
	w.configure()
}

// changeLayout gives a GPU a MIG layout, or takes it.
func (w *walk) changeLayout(random *rand.Rand) {
	w.partitions = true
	i := random.IntN(len(w.layouts))
	w.layouts[i] = !w.layouts[i] && random.IntN(2) == 0 // At most some have one: their MIG devices are not used.
	w.configure()
}

// fault injects a fault into a GPU, or clears all.
func (w *walk) fault(random *rand.Rand) {
	if len(w.faulty) > 0 {
		if err := w.options.machine.Clear(sim.ClearAll); err != nil {
			w.t.Error(err)
		}
		clear(w.faulty)
		return
	}
	i := random.IntN(len(w.uuids))
	faults := []sim.Fault{{XID: 79}, {Lost: true}, {OffBus: true}, {RowRemap: sim.RowRemapFailed}, {Remove: true}}
	fault := faults[random.IntN(len(faults))]
	fault.GPU = strconv.Itoa(i)
	if err := w.options.machine.Inject(fault); err != nil {
		w.t.Error(err)
	}
	w.faulty[w.uuids[i]] = true
}

// step makes one operation, or two or three at the same time.
func (w *walk) step() {
	var chosen []operation
	for range []int{1, 1, 1, 2, 3}[w.random.IntN(5)] {
		o := choose(w.random)
		if !slices.ContainsFunc(chosen, func(other operation) bool { return other.group == o.group }) {
			chosen = append(chosen, o)
		}
	}
	var names []string
	var group sync.WaitGroup
	for _, o := range chosen {
		names = append(names, o.name)
		random := rand.New(rand.NewPCG(w.random.Uint64(), 0))
		group.Go(func() { o.do(w, random) })
	}
	w.trace = append(w.trace, strings.Join(names, " + "))
	group.Wait()
	if w.calm {
		w.calm = false
		w.awaitSettled()
		w.noFalseRefusal()
	}
	for _, name := range names {
		w.counts[name]++
	}
	w.decided()
}

// noFalseRefusal fails the test when a pod does not run although no other holder has the GPUs of its claim, they work, and they are
// allocated through DRA. It is called when everything has settled.
func (w *walk) noFalseRefusal() {
	w.t.Helper()
	for _, c := range w.claims {
		w.await("the claim's pods run, or something has its GPUs", func() error {
			found, err := w.holders()
			if err != nil {
				return err
			}
			state, err := w.state()
			if err != nil {
				return err
			}
			for _, id := range w.gpusOf(c.ResourceClaim) {
				if !state.works(id) || !w.throughDRA[w.index(id)] || w.layouts[w.index(id)] || len(found[id]) > 1 || len(found[id]) == 1 && found[id]["claim "+c.Name] == nil {
					return nil
				}
			}
			for _, p := range c.pods {
				w.node.mu.Lock()
				runs := len(p.containers) > 0
				w.node.mu.Unlock()
				if !runs {
					return fmt.Errorf("pod %s does not run: %w", p.Name, w.refusal(p))
				}
			}
			return nil
		})
	}
}

// decided waits until the kubelet has decided about each pod: it runs, was rejected, or its claims were refused.
func (w *walk) decided() {
	for _, p := range w.all() {
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			w.node.mu.Lock()
			done := len(p.containers) > 0 || p.terminal || p.unprepared != nil
			w.node.mu.Unlock()
			if done {
				break
			}
		}
	}
}

// TestBothAPIs makes random steps on a node whose GPUs are allocated through both APIs: pods with claims, pods that share a claim, pods of
// the device plugin, restarts of the agent and the kubelet, switches of the API of a GPU, MIG layouts, and faults, also at the same
// time. After each step no GPU has two holders, by the kubelet's files, the containers and the ledger, and none is in both APIs at any
// moment. At the end nothing is held.
func TestBothAPIs(t *testing.T) {
	steps := 1000
	if soak() {
		steps = 20_000
	}
	if text := os.Getenv(envSteps); text != "" {
		var err error
		if steps, err = strconv.Atoi(text); err != nil || steps < 1 {
			t.Fatalf("%s=%s: want a number of steps", envSteps, text)
		}
	}
	w := &walk{random: rand.New(rand.NewPCG(seed(t), 0)), counts: map[string]int{}}
	w.mixed = newMixed(t, "h100x8", 8, 0, 1, 2, 3)
	w.watchOneAPI()
	began := time.Now()
	for i := range steps {
		w.step()
		w.doubleHolders()
		w.noConflict()
		if t.Failed() {
			t.Fatalf("after step %d; the last steps:\n  %s", i, strings.Join(w.trace[max(0, len(w.trace)-15):], "\n  "))
		}
	}
	t.Logf("%d steps in %s", steps, time.Since(began).Round(time.Millisecond))
	w.finish()
}

// finish ends all pods, and checks that all GPUs are free again and that the walk has tested something.
func (w *walk) finish() {
	w.t.Helper()
	if err := w.options.machine.Clear(sim.ClearAll); err != nil {
		w.t.Fatal(err)
	}
	for _, c := range w.claims {
		w.end(c)
	}
	for _, p := range w.plain {
		p.kill()
		<-p.finished
	}
	w.awaitReleased()
	w.awaitSettled()
	w.nothingLeaks()
	w.noConflict()
	for _, name := range slices.Sorted(maps.Keys(w.counts)) {
		w.t.Logf("%6d  %s", w.counts[name], name)
	}
	w.t.Logf("%6d  pods of the device plugin or with claims admitted, %d rejected; %s", w.admitted, len(w.rejected), w.truth)
}
