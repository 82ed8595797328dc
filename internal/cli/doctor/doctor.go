package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/problem"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
)

// patience bounds one request to a socket, the agent or the API.
const patience = 5 * time.Second

// Deps are the locations of the node's files and sockets. All paths are as this process sees them.
type Deps struct {
	// Vendor is the vendor whose driver is checked.
	Vendor gpu.Traits
	// HostRoot is the path of the host's /; CDI specs and the runtime's configuration name files below it.
	HostRoot string
	// DriverRoot contains the driver's files. DevRoot contains dev/; empty means DriverRoot.
	DriverRoot string
	DevRoot    string
	// Proc is the /proc with the driver's files, Cgroup the host's /sys/fs/cgroup.
	Proc   string
	Cgroup string
	// KubeletDir is the kubelet's root directory, and PluginDir the directory of its socket for device plugins.
	KubeletDir string
	PluginDir  string
	// KubeletRuns is true if KubeletDir is what the running kubelet was found to use.
	KubeletRuns bool
	// CDIDirs are the directories of CDI specs.
	CDIDirs []string
	// Runtime is the container runtime that was found, and RuntimeSocket its socket.
	Runtime       hostruntime.Runtime
	RuntimeSocket string
	// MPSRoot has a directory per GPU that is shared by MPS. The directory that the agent reports takes precedence.
	MPSRoot string
	// Agent is the agent's socket; empty skips its checks.
	Agent string
	// RuncVersion returns the version of a runc; nil reads it from the program.
	RuncVersion func(path string) (string, error)
	// Simulated hardware has no links in /dev/char.
	Simulated bool
	// Node is the node's name in the API; empty uses the name that the agent reports.
	Node string
	// API is nil without an API server; NoAPI says why.
	API   API
	NoAPI string
}

// API reads the API objects of a node.
type API interface {
	GPUNode(ctx context.Context, name string) (*v1alpha1.GPUNode, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// AgentPods returns the agent's pods of all nodes.
	AgentPods(ctx context.Context) ([]corev1.Pod, error)
	// ResourceQuotas returns the ResourceQuotas of all namespaces.
	ResourceQuotas(ctx context.Context) ([]corev1.ResourceQuota, error)
	// AgentMetrics reads the metrics of an agent's pod.
	AgentMetrics(ctx context.Context, pod *corev1.Pod) (map[string]*dto.MetricFamily, error)
}

// Run checks the node that this process runs on.
func Run(ctx context.Context, deps Deps) *v1alpha1.Doctor {
	c := &checker{deps: deps, report: newReport(deps.Node)}
	c.askAgent(ctx)
	c.driver()
	c.libraries()
	c.deviceNodes()
	c.gpuInstances()
	c.mpsLeftovers()
	c.cdiSpecs()
	c.runtime(ctx)
	c.kubelet(ctx)
	c.cgroup()
	c.agent()
	c.api(ctx)
	return c.report.done()
}

// checker has what the checks have found so far.
type checker struct {
	deps Deps
	*report
	agentSays agentAnswer
	// version is the version of the loaded driver; empty when none is loaded.
	version string
	gpus    []procGPU
	// berthSpecDir is the CDI directory with Berth's spec.
	berthSpecDir string
}

// report collects findings.
type report struct{ out v1alpha1.Doctor }

func newReport(node string) *report {
	return &report{v1alpha1.Doctor{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindDoctor), Node: node, Findings: []v1alpha1.DoctorFinding{}}}
}

func (r *report) ok(check, format string, args ...any) {
	r.out.Findings = append(r.out.Findings, v1alpha1.DoctorFinding{Check: check, Status: v1alpha1.DoctorOK,
		Evidence: fmt.Sprintf(format, args...)})
}

// unknown adds a check that could not be made although its subject should exist.
func (r *report) unknown(check, format string, args ...any) {
	r.out.Findings = append(r.out.Findings, v1alpha1.DoctorFinding{Check: check, Status: v1alpha1.DoctorCannotCheck,
		Evidence: fmt.Sprintf(format, args...)})
}

// problem adds a problem with the catalogue's severity and fix.
func (r *report) problem(check, code, format string, args ...any) {
	entry, known := problem.Find(code)
	if !known {
		// An agent of another version may use codes that this version does not have.
		entry = problem.Problem{Severity: problem.Error, Fix: "This version of berth does not know the code; see the evidence."}
	}
	r.out.Findings = append(r.out.Findings, v1alpha1.DoctorFinding{
		Check: check, Status: v1alpha1.DoctorProblem, Code: code, Severity: string(entry.Severity),
		Evidence: fmt.Sprintf(format, args...), Fix: entry.Fix,
	})
}

func (r *report) notChecked(check, format string, args ...any) {
	r.out.NotChecked = append(r.out.NotChecked, v1alpha1.DoctorNotChecked{Check: check, Why: fmt.Sprintf(format, args...)})
}

// done completes the report with a summary.
func (r *report) done() *v1alpha1.Doctor {
	r.out.Verdict = v1alpha1.DoctorHealthy
	for _, finding := range r.out.Findings {
		switch {
		case finding.Status == v1alpha1.DoctorProblem && finding.Severity != string(problem.Info):
			r.out.Verdict = v1alpha1.DoctorProblems
			return &r.out
		case finding.Status == v1alpha1.DoctorCannotCheck:
			r.out.Verdict = v1alpha1.DoctorUnknown
		}
	}
	return &r.out
}

// mostNames is how many names a line lists.
const mostNames = 4

// reason returns an error without the path, which the surrounding text contains.
func reason(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err.Error()
	}
	return err.Error()
}

// denied reports whether root would not get the error.
func denied(err error) bool { return errors.Is(err, os.ErrPermission) }
