package agent

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/kubelet/checkpoint"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// BenchmarkPairs calls a whole agent over the socket as a churning kubelet does: GetPreferredAllocation, Allocate, and
// immediately the next pair, one GPU each, until no GPU is left. It prints medians, and their ratios to an empty call
// (GetDevicePluginOptions) on the same connection: one such call comes before each pair in every other round and after
// each pair in the others, so that all three have the same load of the machine. The rows:
//
// - free: the ledger has the GPUs free;
// - finished: each GPU belonged to a pod of its own, which has just finished;
// - refusal: the GPU belongs to a running pod, and the kubelet does not respond to the request about that pod.
//
// The checkpoint exists or is missing, and the host is idle or has 5,000 processes in the containers of 100 pods.
func BenchmarkPairs(b *testing.B) {
	for _, host := range []int{0, 5000} {
		for _, profile := range []string{"a100x8-40g", "a100x16"} {
			p := newPairs(b, profile, crowdedCgroups(b, host), nil, "")
			for _, known := range []bool{true, false} {
				name := fmt.Sprintf("%s/processes=%d/checkpoint=%v", profile, host, known)
				b.Run(name+"/free", func(b *testing.B) { p.measure(b, known, false) })
				b.Run(name+"/finished", func(b *testing.B) { p.measure(b, known, true) })
			}
			b.Run(fmt.Sprintf("%s/processes=%d/refusal", profile, host), p.measureRefusal)
		}
	}
}

// pairs is an agent with pods and cgroups of its own.
type pairs struct {
	*bench
	ids  []string
	api  *fake.FakeDynamicClient
	pods int // number of pods created so far
}

// newPairs starts an agent whose pods have their cgroups below root, with a clock of its own or, without one, the real one. The file
// of its configuration can share the last GPU.
func newPairs(b testing.TB, profile, root string, agentClock clock.WithTicker, file string) *pairs {
	p := &pairs{bench: newIdleBench(b, profile), api: fakeAPI(false, nil)}
	p.client, p.log, p.clock = p.api, io.Discard, agentClock
	p.override = func(c *v1alpha1.AgentConfig) {
		c.Standalone, c.NodeName, c.Labels.Output, c.CgroupRoot = false, "node-0", v1alpha1.LabelsNone, root
	}
	whole := len(inventoryOf(b, p.machine))
	if file != "" {
		p.configure(file)
		whole--
	}
	p.agent = p.start()
	p.ids = p.await(func(s state) bool { return len(s.Healthy) == whole }).Healthy
	return p
}

// crowdedCgroups creates the cgroups of a kubelet with 100 pods in which this number of processes sleeps, and returns
// their root. Without root privileges it returns those of the machine, without further processes.
func crowdedCgroups(b testing.TB, processes int) string {
	const pods = 100
	mount := "/sys/fs/cgroup/devices"
	if _, err := os.Stat(mount); err != nil {
		mount = "/sys/fs/cgroup"
	}
	root := fmt.Sprintf("/berth-pairs-%d-%d", os.Getpid(), time.Now().UnixNano())
	if err := os.Mkdir(mount+root, 0o755); err != nil {
		if processes > 0 {
			b.Skipf("the rows with %d processes need root, to make cgroups: %v", processes, err)
		}
		return ""
	}
	var dirs []string
	b.Cleanup(func() {
		for _, dir := range slices.Backward(dirs) {
			_ = os.Remove(dir)
		}
	})
	mkdir := func(parts ...string) string {
		dir := filepath.Join(append([]string{mount + root}, parts...)...)
		_ = os.Mkdir(dir, 0o755)
		dirs = append(dirs, dir)
		return dir
	}
	mkdir()
	mkdir("kubepods")
	mkdir("kubepods", "burstable")
	for i := range min(pods, processes) {
		pod := fmt.Sprintf("pod%08d-0000-0000-0000-000000000000", i)
		mkdir("kubepods", "burstable", pod)
		dir := mkdir("kubepods", "burstable", pod, fmt.Sprintf("%064x", i))
		// Each process is a fork of the shell that reads from a pipe into which nothing is written.
		script := fmt.Sprintf("exec 3<&0; echo $$ > %s/cgroup.procs; for i in $(seq %d); do read line <&3 & done; echo ready; wait", dir, processes/pods-1)
		shell := exec.Command("sh", "-c", script)
		shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		in, err := shell.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := shell.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := shell.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
			in.Close()
			_ = shell.Wait()
			for range 100 { // until the kernel has removed them from the cgroup
				if os.Remove(dir) == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		if _, err := out.Read(make([]byte, 8)); err != nil {
			b.Fatal(err)
		}
	}
	return root
}

// allocateAll gives each GPU to a pod of its own, which runs, and lets the agent see it.
func (p *pairs) allocateAll(b testing.TB) []string {
	b.Helper()
	var uids []string
	var entries []checkpoint.PodDevicesEntry
	for _, id := range p.ids {
		p.pods++
		uid := fmt.Sprintf("%08x-1111-1111-1111-111111111111", p.pods)
		uids = append(uids, uid)
		name := fmt.Sprintf("pod-%d", p.pods)
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default", "uid": uid},
			"spec": map[string]any{"nodeName": "node-0", "containers": []any{map[string]any{
				"name": "main", "resources": map[string]any{"limits": map[string]any{resource: "1"}},
			}}},
		}}
		if err := p.api.Tracker().Create(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, object, "default"); err != nil {
			b.Fatal(err)
		}
		entries = append(entries, checkpoint.PodDevicesEntry{PodUID: uid, ContainerName: "main", ResourceName: resource, DeviceIDs: checkpoint.DevicesPerNUMA{0: {id}}})
	}
	p.writeCheckpoint(b, entries)
	p.until(b, "the pods hold the GPUs", func() bool {
		held := p.agent.node.ledger.Holdings()
		return len(held) == len(p.ids) && !slices.ContainsFunc(held, func(h ledger.Holding) bool {
			_, state := p.agent.node.pods.Pod(h.Holder.PodUID)
			return h.Pending || !slices.Contains(uids, h.Holder.PodUID) || state != podwatch.Living
		})
	})
	return uids
}

// finishAll ends the pods, and returns as soon as the agent's watch has seen that.
func (p *pairs) finishAll(b testing.TB, uids []string) {
	b.Helper()
	for i := range uids {
		name := fmt.Sprintf("pod-%d", p.pods-len(uids)+i+1)
		if err := p.api.Tracker().Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "default", name); err != nil {
			b.Fatal(err)
		}
	}
	p.until(b, "the watch has seen that the pods ended", func() bool {
		return !slices.ContainsFunc(uids, func(uid string) bool { _, state := p.agent.node.pods.Pod(uid); return state != podwatch.Ended })
	})
}

func (p *pairs) writeCheckpoint(b testing.TB, entries []checkpoint.PodDevicesEntry) {
	b.Helper()
	blob, err := checkpoint.Encode(entries, map[string][]string{resource: p.ids})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(p.kubeletDir(), kubelet.CheckpointFile)
	if err := os.WriteFile(path+".new", blob, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.Fatal(err)
	}
}

func (p *pairs) until(b testing.TB, what string, done func() bool) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("waited 10 s until %s; the holdings are %v", what, p.agent.node.ledger.Holdings())
		}
	}
}

func (p *pairs) measure(b *testing.B, known, finished bool) {
	var empty, preferred, allocated []time.Duration
	timed := func(times *[]time.Duration, call func() error) {
		begin := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		*times = append(*times, time.Since(begin))
	}
	rounds, early := 0, 0
	for b.Loop() {
		rounds++
		uids := p.allocateAll(b)
		if !finished {
			p.finishAll(b, uids)
			p.until(b, "the GPUs are free", func() bool { return len(p.agent.node.ledger.Holdings()) == 0 })
			p.writeCheckpoint(b, nil)
		}
		if !known {
			if err := os.Remove(filepath.Join(p.kubeletDir(), kubelet.CheckpointFile)); err != nil {
				b.Fatal(err)
			}
		}
		time.Sleep(300 * time.Millisecond) // until the agent has nothing to do
		if finished {
			p.finishAll(b, uids)
			if len(p.agent.node.ledger.Holdings()) < len(p.ids) {
				early++ // The agent has released the GPUs already.
				continue
			}
		}
		options := func() error {
			_, err := p.kubelet.Options(b.Context(), resource)
			return err
		}
		available := slices.Clone(p.ids)
		for len(available) > 0 {
			if rounds%2 == 0 {
				timed(&empty, options)
			}
			var chosen []string
			timed(&preferred, func() (err error) {
				chosen, err = p.kubelet.Preferred(b.Context(), resource, available, nil, 1)
				return err
			})
			timed(&allocated, func() error {
				_, err := p.kubelet.Allocate(b.Context(), resource, chosen)
				return err
			})
			available = slices.DeleteFunc(available, func(id string) bool { return id == chosen[0] })
			if rounds%2 != 0 {
				timed(&empty, options)
			}
		}
	}
	if len(empty) == 0 {
		b.Fatalf("in all of %d rounds the GPUs were released before the first call", rounds)
	}
	b.ReportMetric(float64(rounds-early), "rounds")
	at := func(times []time.Duration, percent int) float64 {
		slices.Sort(times)
		return float64(times[(len(times)-1)*percent/100].Nanoseconds()) / 1000
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(empty, 50), "empty-us")
	b.ReportMetric(at(preferred, 50), "preferred-us")
	b.ReportMetric(at(allocated, 50), "allocate-us")
	b.ReportMetric(at(preferred, 99), "preferred-p99-us")
	b.ReportMetric(at(allocated, 99), "allocate-p99-us")
	b.ReportMetric(at(preferred, 50)/at(empty, 50), "preferred/empty")
	b.ReportMetric(at(allocated, 50)/at(empty, 50), "allocate/empty")
}

func (p *pairs) measureRefusal(b *testing.B) {
	uids := p.allocateAll(b)
	var longest time.Duration
	for b.Loop() {
		begin := time.Now()
		if _, err := p.kubelet.Allocate(b.Context(), resource, p.ids[:1]); err == nil {
			b.Fatal("a GPU of a living pod was allocated")
		}
		longest = max(longest, time.Since(begin))
	}
	b.ReportMetric(float64(longest.Milliseconds()), "longest-ms")
	p.finishAll(b, uids)
	p.until(b, "the GPUs are free", func() bool { return len(p.agent.node.ledger.Holdings()) == 0 })
}
