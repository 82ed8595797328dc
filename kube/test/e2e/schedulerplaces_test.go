package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// placesConfig has the profile of the chart for all pods.
const placesConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint: {enabled: [{name: BerthPlacement, weight: 10000}, {name: BerthGangs}, {name: BerthPreemption}, {name: BerthBinding}], disabled: [{name: DefaultPreemption}]}
    queueSort: {enabled: [{name: BerthGangs}], disabled: [{name: PrioritySort}]}
    postFilter: {enabled: [{name: BerthPlacement}]}
    bind: {enabled: [{name: BerthGangs}, {name: BerthBinding}]}
    score: {disabled: [{name: NodeResourcesFit}, {name: NodeResourcesBalancedAllocation}]}
  pluginConfig: [{name: BerthPlacement, args: {policy: pack}}, {name: PodTopologySpread, args: {defaultingType: List}}]
`

// schedulerMetrics is where the cluster's own scheduler serves its metrics.
const schedulerMetrics = "https://127.0.0.1:10259/metrics"

// placesLab is a cluster of nodes whose kubelets allocate the GPUs of different machines, with berth-scheduler in place of the cluster's
// own.
type placesLab struct {
	*sandbox.Cluster
	nodes  map[string]*rig
	client *http.Client
}

// schedulerConfig writes a configuration of the scheduler, and returns its path.
func schedulerConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newPlacesLab(t *testing.T, machines map[string]string) *placesLab {
	t.Helper()
	c := ownCluster(t, sandbox.Options{Hollow: len(machines), NodeProfiles: machines, Scheduler: "berth-scheduler", SchedulerConfig: schedulerConfig(t, placesConfig)})
	checkRootUnchanged(t, c)
	rest := c.RESTConfig()
	certificate, err := tls.X509KeyPair(rest.CertData, rest.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	l := &placesLab{Cluster: c, nodes: map[string]*rig{}}
	l.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return l.dialScheduler(ctx, network, address)
		},
		// The scheduler makes a certificate of its own, and the test asks the loopback address only.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}}}} //nolint:gosec
	for name := range machines {
		node, err := c.Node(name)
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Cluster: c, node: node}
		gpus := len(hardware(t, node.SimDir()).GPUs)
		r.waitAllocatable(t, gpus)
		waitUntil(t, 30*time.Second, "the GPUNode lists the GPUs", func(ctx context.Context) error {
			object, err := r.gpuNode(ctx)
			if err == nil && object.Status.Summary.Free != gpus {
				err = fmt.Errorf("%d are free", object.Status.Summary.Free)
			}
			return err
		})
		l.nodes[name] = r
	}
	return l
}

// pod returns a pod with GPUs that may run on all nodes of the lab.
func (l *placesLab) pod(name string, gpus int) *corev1.Pod {
	pod := podWithGPUs(name, gpus)
	pod.Spec.Tolerations = []corev1.Toleration{{Key: sandbox.HollowLabel, Operator: corev1.TolerationOpExists}}
	return pod
}

// dialScheduler connects from the network namespace of the scheduler, in which it serves on the loopback address.
func (l *placesLab) dialScheduler(ctx context.Context, network, address string) (conn net.Conn, err error) {
	at := slices.IndexFunc(l.State().Processes, func(p sandbox.Process) bool { return p.Name == "kube-scheduler" })
	if at < 0 {
		return nil, errors.New("the scheduler does not run")
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", l.State().Processes[at].PID))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // The thread ends with the goroutine, since it is in another namespace.
		if err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err == nil {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		}
	}()
	<-done
	return conn, err
}

// predictions returns how many predictions the scheduler has compared with the kubelets' choice, by result.
func (l *placesLab) predictions(ctx context.Context) (map[string]int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, schedulerMetrics, nil)
	if err != nil {
		return nil, err
	}
	response, err := l.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), `berth_scheduler_predictions_total{result="`)
		result, value, ok := strings.Cut(rest, `"} `)
		if !found || !ok {
			continue
		}
		if counts[result], err = strconv.Atoi(value); err != nil {
			return nil, err
		}
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("%s has no predictions, status %s", schedulerMetrics, response.Status)
	}
	return counts, lines.Err()
}

// TestSchedulerPlaces checks on real kubelets where pods go, and that they get the GPUs that were predicted.
func TestSchedulerPlaces(t *testing.T) {
	onOwnCluster(t, 4)
	// Nothing of hollow-0 is linked; the GPUs of the others are, in different ways.
	l := newPlacesLab(t, map[string]string{"hollow-0": "t4x4", "hollow-1": "a100x8-40g", "hollow-2": "v100x8-hybrid-mesh", "hollow-3": "h100x8"})
	t.Run("Linked", func(t *testing.T) { l.testLinked(t) })
	t.Run("Why", func(t *testing.T) { l.testWhy(t) })
	t.Run("Predicted", func(t *testing.T) { l.testPredicted(t) })
	// Last: the GPUs stay degraded for a while, and the agent knows that they are not before the GPUNode does.
	t.Run("Degraded", func(t *testing.T) { l.testDegraded(t) })
}

// testLinked: four GPUs are had where NVLinks connect them, although the node without links has just four free.
func (l *placesLab) testLinked(t *testing.T) {
	pod := startPod(t, l.Cluster, l.pod("linked", 4))
	if pod.Spec.NodeName == "hollow-0" {
		t.Errorf("the pod with 4 GPUs is on %s, whose GPUs have no NVLinks", pod.Spec.NodeName)
	}
	if uuids := l.nodes[pod.Spec.NodeName].assignment(t, pod).uuids; len(uuids) != 4 {
		t.Errorf("it has the GPUs %q; want four", uuids)
	}
}

// testDegraded: while a healthy GPU is free anywhere that a pod may run, it gets that and no degraded one.
func (l *placesLab) testDegraded(t *testing.T) {
	node := l.nodes["hollow-0"]
	machine, err := sim.Open(node.node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	var degraded []string
	for _, g := range hardware(t, node.node.SimDir()).GPUs[:2] {
		if err := machine.Inject(sim.Fault{GPU: g.UUID, Throttle: "thermal"}); err != nil {
			t.Fatal(err)
		}
		degraded = append(degraded, g.UUID)
	}
	t.Cleanup(func() {
		for _, uuid := range degraded {
			if err := machine.Clear(uuid); err != nil {
				t.Error(err)
			}
		}
	})
	waitUntil(t, 30*time.Second, "the GPUNode says that two GPUs are degraded", func(ctx context.Context) error {
		object, err := node.gpuNode(ctx)
		if err != nil {
			return err
		}
		for i := range object.Status.Devices {
			if d := &object.Status.Devices[i]; slices.Contains(degraded, d.UUID) && d.Health.State != "Degraded" {
				return fmt.Errorf("%s is %s", d.UUID, d.Health.State)
			}
		}
		return nil
	})
	// Only these two nodes are allowed: 2 healthy GPUs and 2 degraded ones, and 8 healthy ones.
	for i := range 11 {
		pod := l.pod(fmt.Sprintf("healthy-%d", i), 1)
		pod.Spec.Affinity = nodesOnly("hollow-0", "hollow-1")
		pod = startPod(t, l.Cluster, pod)
		uuids := l.nodes[pod.Spec.NodeName].assignment(t, pod).uuids
		if bad := slices.Contains(degraded, uuids[0]); bad != (i >= 10) {
			t.Errorf("pod %d of 1 GPU has %s on %s; degraded: %v, want that only of the 11th", i, uuids[0], pod.Spec.NodeName, bad)
		}
	}
}

func nodesOnly(names ...string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}}}}}}}
}

// testPredicted runs random pods of 1 to 8 GPUs, and deletes random ones when the nodes are full. The scheduler compares each prediction
// with the holders in the GPUNode: at least 99 % must be hits. BERTH_SOAK=1 runs 1,000 pods in place of 24, and up to four of them at a
// time: those that go to one node have to be bound in the order of their scheduling, or each gets the GPUs of another.
func (l *placesLab) testPredicted(t *testing.T) {
	pods, most, seed := 24, 1, rand.Uint64()
	if os.Getenv(envSoak) != "" {
		pods, most = 1000, 4
	}
	t.Logf("seed %d, %d pods", seed, pods)
	random := rand.New(rand.NewPCG(seed, 1))
	before, err := l.predictions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var running []*corev1.Pod
	t.Cleanup(func() {
		for _, pod := range running {
			l.remove(t, pod)
		}
	})
	number := 0
	for started := 0; started < pods; {
		burst := min(1+random.IntN(most), pods-started)
		free := l.free(t)
		var made []*corev1.Pod
		for range burst {
			gpus := []int{1, 1, 1, 2, 2, 3, 4, 8}[random.IntN(8)]
			// No pod waits: each of the burst fits, whatever the others take, on some node that has twice the GPUs free.
			if !slices.ContainsFunc(free, func(n int) bool { return n >= gpus }) {
				continue
			}
			number++
			made = append(made, l.pod(fmt.Sprintf("random-%d", number), gpus))
		}
		if len(made) == 0 || slices.Max(free) < 4 {
			for range 1 + random.IntN(3) {
				if len(running) > 0 {
					at := random.IntN(len(running))
					l.remove(t, running[at])
					running = slices.Delete(running, at, at+1)
				}
			}
			continue
		}
		created := l.startAll(t, made, &running)
		started += created
		l.waitCompared(t, before, started)
	}
	after, err := l.predictions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hits, misses := after["hit"]-before["hit"], after["miss"]-before["miss"]
	t.Logf("%d predictions were right, %d wrong, %d excluded", hits, misses, after["excluded"]-before["excluded"])
	// A pod that did not run within the time of startAll is not counted in pods, and its prediction may be compared.
	if hits+misses < pods || misses*100 > hits+misses {
		t.Errorf("%d of %d predictions for %d pods were wrong; want at most 1 %%:\n%s", misses, hits+misses, pods, l.misses(t))
	}
}

// startAll creates pods at once. Those that do not fit beside the others are deleted. It returns how many run.
func (l *placesLab) startAll(t *testing.T, pods []*corev1.Pod, running *[]*corev1.Pod) int {
	t.Helper()
	for _, pod := range pods {
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	started := 0
	for _, pod := range pods {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		got, err := l.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodRunning)
		cancel()
		if err != nil {
			l.remove(t, pod)
			continue
		}
		started++
		*running = append(*running, got)
	}
	return started
}

// waitCompared waits until as many predictions were compared as pods were started.
func (l *placesLab) waitCompared(t *testing.T, before map[string]int, want int) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the scheduler has compared all predictions", func(ctx context.Context) error {
		now, err := l.predictions(ctx)
		if err != nil {
			return err
		}
		if got := now["hit"] + now["miss"] + now["excluded"] - before["hit"] - before["miss"] - before["excluded"]; got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

func (l *placesLab) remove(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := l.DeletePodAndWait(ctx, pod.Namespace, pod.Name, 0); err != nil {
		t.Error(err)
	}
}

// free returns how many GPUs are free on each node by its GPUNode.
func (l *placesLab) free(t *testing.T) []int {
	t.Helper()
	var list []int
	for _, r := range l.nodes {
		object, err := r.gpuNode(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, object.Status.Summary.Free)
	}
	return list
}

// misses returns what the scheduler logged of wrong predictions.
func (l *placesLab) misses(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(l.Dir(), "logs", "kube-scheduler.log"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "other GPUs than predicted") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
