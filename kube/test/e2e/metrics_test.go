package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// metricsPage is a page of metrics as Prometheus parses it.
type metricsPage map[string]*dto.MetricFamily

func readMetrics(text []byte) (metricsPage, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

func parseMetrics(t testing.TB, text []byte) metricsPage {
	t.Helper()
	page, err := readMetrics(text)
	if err != nil {
		t.Fatalf("Prometheus cannot read the page: %v", err)
	}
	return page
}

// find returns the values of the series of a name that have at least these labels.
func (p metricsPage) find(name string, labels map[string]string) []float64 {
	var values []float64
	for _, metric := range p[name].GetMetric() {
		got := map[string]string{}
		for _, pair := range metric.GetLabel() {
			got[pair.GetName()] = pair.GetValue()
		}
		has := true
		for key, value := range labels {
			has = has && got[key] == value
		}
		if has {
			values = append(values, metric.GetGauge().GetValue()+metric.GetCounter().GetValue()+metric.GetUntyped().GetValue())
		}
	}
	return values
}

var (
	seriesForm = regexp.MustCompile(`^([a-zA-Z_]+)\{(.*)\}$`)
	labelForm  = regexp.MustCompile(`([a-zA-Z_]+)="([^"]*)"`)
)

// wants compares series, written as NAME{LABEL="VALUE",...}: for each there must be one with at least these labels.
func (p metricsPage) wants(want map[string]float64) error {
	var wrong []error
	for _, series := range slices.Sorted(maps.Keys(want)) {
		parts := seriesForm.FindStringSubmatch(series)
		if parts == nil {
			return fmt.Errorf("%q is not a series", series)
		}
		labels := map[string]string{}
		for _, pair := range labelForm.FindAllStringSubmatch(parts[2], -1) {
			labels[pair[1]] = pair[2]
		}
		if got := p.find(parts[1], labels); len(got) != 1 || got[0] < want[series]-1e-9 || got[0] > want[series]+1e-9 {
			wrong = append(wrong, fmt.Errorf("%s is %v, want %v", series, got, want[series]))
		}
	}
	return errors.Join(wrong...)
}

// waitMetrics waits until the agent's page passes a check.
func (h *healthLab) waitMetrics(t testing.TB, what string, check func(metricsPage) error) metricsPage {
	t.Helper()
	var page metricsPage
	waitUntil(t, 20*time.Second, "in the metrics "+what, func(ctx context.Context) error {
		text, err := h.page(ctx, "/metrics")
		if err != nil {
			return err
		}
		if page, err = readMetrics(text); err != nil {
			return err
		}
		return check(page)
	})
	return page
}

// optionsOf requests the options from a device plugin's service.
func optionsOf(t testing.TB, kubeletDir, socket string, limit time.Duration) error {
	connection, err := grpc.NewClient("unix://"+filepath.Join(kubeletDir, "device-plugins", socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = v1beta1.NewDevicePluginClient(connection).GetDevicePluginOptions(timeout(t, limit), &v1beta1.Empty{})
	return err
}

// testPodsInMetrics checks that the usage of real processes in real containers is reported by pod, for a whole GPU, a
// time-sliced one and a MIG device, in Berth's metrics, in DCGM's and by berth top.
func testPodsInMetrics(t *testing.T, h *healthLab) {
	pods := h.run(t, podRequesting("whole", gpuResource, 1), podRequesting("slice-a", sharedResource, 1),
		podRequesting("slice-b", sharedResource, 1), podRequesting("part", mig1gs, 1))
	const mib = 1 << 20
	process := map[string]int{}
	for _, pod := range pods {
		process[pod.Name] = h.processOf(t, pod).PID
	}
	whole, part := h.idsOf(t, pods[0])[0], h.idsOf(t, pods[3])[0]
	shared, split := h.gpuInfo(t, 0).UUID, h.gpuInfo(t, 1).UUID
	works := map[string]sim.Work{
		whole: {SM: 70, Memory: 30, PowerWatts: 250, Programs: []sim.Program{{PID: process["whole"], MemoryMiB: 1000, SM: 70, Memory: 30}}},
		shared: {SM: 50, Memory: 20, Programs: []sim.Program{
			{PID: process["slice-a"], MemoryMiB: 2000, SM: 30, Memory: 15}, {PID: process["slice-b"], MemoryMiB: 3000, SM: 20, Memory: 5},
			{PID: os.Getpid(), MemoryMiB: 500},
		}},
		split: {Programs: []sim.Program{{PID: process["part"], MIG: part, MemoryMiB: 400}}},
	}
	for uuid, work := range works {
		if err := h.machine.SetWork(uuid, work); err != nil {
			t.Fatal(err)
		}
	}
	of := func(name, uuid, pod string) string {
		return fmt.Sprintf(`%s{uuid="%s",namespace="default",pod="%s",container="main"}`, name, uuid, pod)
	}
	want := map[string]float64{
		of("berth_gpu_allocation_info", whole, "whole"):                                              1,
		of("berth_gpu_allocation_info", shared, "slice-a"):                                           1,
		of("berth_gpu_allocation_info", shared, "slice-b"):                                           1,
		of("berth_gpu_allocation_info", part, "part"):                                                1,
		of("berth_gpu_pod_processes", whole, "whole"):                                                1,
		of("berth_gpu_pod_processes", shared, "slice-a"):                                             1,
		of("berth_gpu_pod_memory_used_bytes", whole, "whole"):                                        1000 * mib,
		of("berth_gpu_pod_memory_used_bytes", shared, "slice-a"):                                     2000 * mib,
		of("berth_gpu_pod_memory_used_bytes", shared, "slice-b"):                                     3000 * mib,
		of("berth_gpu_pod_memory_used_bytes", part, "part"):                                          400 * mib,
		of("berth_gpu_pod_sm_utilization_ratio", whole, "whole"):                                     0.7,
		of("berth_gpu_pod_sm_utilization_ratio", shared, "slice-a"):                                  0.3,
		of("berth_gpu_pod_sm_utilization_ratio", shared, "slice-b"):                                  0.2,
		fmt.Sprintf(`berth_gpu_host_memory_used_bytes{uuid="%s"}`, shared):                           500 * mib,
		fmt.Sprintf(`berth_gpu_allocation_info{uuid="%s",mode="exclusive"}`, part):                   1,
		fmt.Sprintf(`berth_gpu_utilization_ratio{uuid="%s"}`, whole):                                 0.7,
		fmt.Sprintf(`berth_gpu_power_usage_watts{uuid="%s"}`, whole):                                 250,
		fmt.Sprintf(`berth_gpu_allocation_info{uuid="%s",pod="slice-a",mode="timeslicing"}`, shared): 1,

		fmt.Sprintf(`DCGM_FI_DEV_GPU_UTIL{UUID="%s",namespace="default",pod="whole",container="main"}`, whole):    70,
		fmt.Sprintf(`DCGM_FI_DEV_POWER_USAGE{UUID="%s",namespace="default",pod="whole",container="main"}`, whole): 250,
		fmt.Sprintf(`DCGM_FI_DEV_GPU_UTIL{UUID="%s"}`, shared):                                                    50,
		fmt.Sprintf(`DCGM_FI_DEV_FB_USED{UUID="%s",pod="slice-b"}`, shared):                                       3000,
	}
	page := h.waitMetrics(t, "the pods' usage is reported", func(p metricsPage) error { return p.wants(want) })
	if got := page.find("DCGM_FI_DEV_FB_USED", map[string]string{"GPU_I_PROFILE": "1g.5gb", "pod": "part",
		"namespace": "default", "container": "main"}); len(got) != 1 {
		t.Errorf("the framebuffer of the MIG device of pod part is reported %d times: %v", len(got), page["DCGM_FI_DEV_FB_USED"].GetMetric())
	}
	text, err := h.page(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the page has %d names and %d KB", len(page), len(text)>>10)

	out := h.inNode(t, 0, "berth", "top")
	for _, pod := range []string{"whole", "slice-a", "slice-b", "part"} {
		if !strings.Contains(out, "default/"+pod) {
			t.Errorf("berth top does not list pod %s:\n%s", pod, out)
		}
	}
	if !regexp.MustCompile(` 70% .*250/.*NVIDIA A100-SXM4-40GB`).MatchString(out) {
		t.Errorf("berth top does not show the utilization of the GPU of pod whole:\n%s", out)
	}
	samples := &v1alpha1.GPUSamples{}
	decoder := json.NewDecoder(strings.NewReader(h.inNode(t, 0, "berth", "top", "-o", "json")))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(samples); err != nil || len(samples.Items) != nodeGPUs {
		t.Errorf("berth top lists %d GPUs as JSON, want %d: %v", len(samples.Items), nodeGPUs, err)
	}

	// A pod that is gone holds and uses nothing.
	if err := h.remove(timeout(t, 30*time.Second), pods[1]); err != nil {
		t.Fatal(err)
	}
	h.waitMetrics(t, "pod slice-a is gone", func(p metricsPage) error {
		for name := range p {
			if left := p.find(name, map[string]string{"pod": "slice-a"}); len(left) > 0 {
				return fmt.Errorf("%s reports it", name)
			}
		}
		return p.wants(map[string]float64{of("berth_gpu_pod_memory_used_bytes", shared, "slice-b"): 3000 * mib})
	})
}

// pretendCgroup2 returns a command that runs another one with a file of cgroup v2, where the machine has v1. Berth requires v2, and reports
// a machine without it; these tests are about other findings.
func pretendCgroup2(argv []string) []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return argv
	}
	const pretend = `mount -t tmpfs none /sys/fs/cgroup && touch /sys/fs/cgroup/cgroup.controllers && exec "$@"`
	return append([]string{"unshare", "--mount", "sh", "-c", pretend, "sh"}, argv...)
}

// inNode runs one of Berth's programs on the node, with the node's own files and sockets.
func (r *rig) inNode(t testing.TB, code int, program string, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	argv := append([]string{filepath.Join(r.State().Bin, program)}, args...)
	argv = pretendCgroup2(argv)
	err := r.node.RunInside(timeout(t, 20*time.Second), sandbox.Streams{Out: &out, Err: &errOut}, argv...)
	var exit interface{ ExitCode() int }
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		got = -1
	}
	if got != code {
		t.Errorf("%v ends with %d (%v), want %d:\n%s%s", argv, got, err, code, out.String(), errOut.String())
	}
	return out.String()
}

// doctor runs berth doctor on the node, which must end with the code, and returns its report.
func (r *rig) doctor(t testing.TB, code int) *v1alpha1.Doctor {
	t.Helper()
	out := r.inNode(t, code, "berth", "doctor", "--sim", r.node.SimDir(), "--kubeconfig", r.AdminKubeconfigInside(),
		"--node-name", r.node.Name(), "-o", "json")
	report := &v1alpha1.Doctor{}
	if err := json.Unmarshal([]byte(out), report); err != nil {
		t.Errorf("berth doctor: %v\n%s", err, out)
	}
	return report
}

// checkDoctor runs berth doctor on the node: with 0 it must find nothing, with 1 these codes among others.
func (r *rig) checkDoctor(t testing.TB, code int, codes ...string) {
	t.Helper()
	report := r.doctor(t, code)
	var found []string
	for _, finding := range report.Findings {
		if finding.Status == v1alpha1.DoctorProblem && !slices.Contains(found, finding.Code) {
			found = append(found, finding.Code)
		}
	}
	slices.Sort(found)
	for _, want := range codes {
		if !slices.Contains(found, want) {
			t.Errorf("berth doctor finds %v, want %s among them\n%+v", found, want, report.Findings)
		}
	}
	if len(codes) == 0 && len(found) > 0 {
		t.Errorf("berth doctor finds %v on a healthy node\n%+v", found, report.Findings)
	}
}

// testHungCall checks that no client of the agent has to wait while the driver hangs for a minute in one call.
func testHungCall(t *testing.T, h *healthLab) {
	const patience = time.Second
	gpuInfo := h.gpuInfo(t, 3)
	h.waitMetrics(t, "the GPUs are measured", func(p metricsPage) error {
		return p.wants(map[string]float64{`berth_gpu_healthy{index="3"}`: 1})
	})
	hung := h.inject(t, sim.Fault{GPU: gpuInfo.UUID, Hang: sim.AllCalls, HangFor: time.Minute})
	slowest := map[string]time.Duration{}
	ask := func() []byte {
		var metrics []byte
		for _, path := range []string{"/metrics", "/readyz", "/healthz", "/debug/state"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			start := time.Now()
			text, err := h.page(ctx, path)
			cancel()
			slowest[path] = max(slowest[path], time.Since(start))
			if err != nil {
				t.Errorf("%s after the call began to hang: %v", ms(time.Since(hung)), err)
			}
			if path == "/metrics" {
				metrics = text
			}
		}
		return metrics
	}
	var told time.Duration
	waitUntil(t, 20*time.Second, "the hung call is a problem", func(context.Context) error {
		if page := parseMetrics(t, ask()); page.wants(map[string]float64{`berth_gpu_health_cause{index="3",code="NVML_TIMEOUT"}`: 1}) != nil {
			return errors.New("no NVML_TIMEOUT")
		}
		told = time.Since(hung)
		return nil
	})
	t.Logf("a call that hangs: reported after %s (the next scan is at most %s away, its deadline is %s)", ms(told), healthPoll, healthDeadline)
	if limit := healthPoll + healthDeadline + noticed; told > limit {
		t.Errorf("it is reported after %s, want at most %s", told, limit)
	}
	h.waitGPUNodeHealth(t, gpuInfo.UUID, "Unhealthy", "NVML_TIMEOUT")

	start := time.Now()
	pod := h.run(t, podWithGPUs("meanwhile", 1))[0]
	t.Logf("a pod with a GPU starts in %s during the hang", ms(time.Since(start)))
	if ids := h.idsOf(t, pod); slices.Contains(ids, gpuInfo.UUID) {
		t.Errorf("the pod got the GPU whose driver hangs")
	}
	h.checkService(t, patience)
	ask()
	t.Logf("the slowest responses during the hang: %v", slowest)

	start = time.Now()
	if err := h.node.StopAgent(timeout(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	left := time.Since(start)
	t.Logf("the agent ends in %s", ms(left))
	if left > 5*time.Second {
		t.Errorf("the agent takes %s to end, want at most 5 s", left)
	}
	h.repair(t, gpuInfo.UUID)
	if err := h.mode.Start(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	h.waitKubelet(t, map[string]int{gpuResource: nodeGPUs})
}

// checkService measures a call of the agent's gRPC service that allocates nothing.
func (h *healthLab) checkService(t testing.TB, limit time.Duration) {
	t.Helper()
	sockets := h.agentSockets(t)
	if len(sockets) != 1 {
		t.Fatalf("the agent has the sockets %v, want one", sockets)
	}
	start := time.Now()
	if err := optionsOf(t, h.node.KubeletDir(), sockets[0], limit); err != nil {
		t.Errorf("the device plugin's service: %v", err)
	}
	t.Logf("the device plugin's service responds in %s", ms(time.Since(start)))
}

// BenchmarkAgent measures the cost of an idle agent that samples 8 GPUs every second.
func BenchmarkAgent(b *testing.B) {
	file := filepath.Join(b.TempDir(), "agent.yaml")
	(&sharingRig{file: file}).configure(b, "sampleInterval: 1s\ndcgmNames: true\n")
	c := ownCluster(b, sandbox.Options{Profile: "a100x8-40g", Agent: configured(file)})
	agent := newRig(c).agent(b)
	const window = 20 * time.Second
	for b.Loop() {
		before := cpuOf(b, agent.PID)
		select {
		case <-time.After(window):
		case <-b.Context().Done():
		}
		b.ReportMetric(100*(cpuOf(b, agent.PID)-before).Seconds()/window.Seconds(), "%core")
		b.ReportMetric(float64(rssOf(b, agent.PID))/(1<<20), "RSS-MiB")
	}
}

// cpuOf returns the CPU time of a process.
func cpuOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	blob, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The fields after the name, which may contain blanks: proc(5) numbers the first of them 3, and the ticks 14 and
	// 15.
	const first, user, system, ticks = 3, 14, 15, 100
	fields := strings.Fields(string(blob[bytes.LastIndexByte(blob, ')')+1:]))
	sum := 0
	for _, at := range []int{user, system} {
		n, err := strconv.Atoi(fields[at-first])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

// rssOf returns the resident memory of a process, in bytes.
func rssOf(t testing.TB, pid int) int {
	t.Helper()
	blob, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(blob)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(text)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("process %d has no VmRSS", pid)
	return 0
}
