package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/problem"
)

// patience is how long one question to a socket, the agent or the API may take.
const patience = 5 * time.Second

// Deps are where the node's places are seen. All paths are of this process.
type Deps struct {
	// HostRoot is where the node's / is seen; CDI specs and the runtime's configuration name files below it.
	HostRoot string
	// DriverRoot holds the driver's files and dev/.
	DriverRoot string
	// Proc is the /proc that knows the driver, Cgroup the host's /sys/fs/cgroup.
	Proc, Cgroup string
	// KubeletDir is the kubelet's root directory.
	KubeletDir string
	// CDIDirs are the directories of CDI specs.
	CDIDirs []string
	// ContainerdState is containerd's state directory, with its socket.
	ContainerdState string
	// MPSRoot has a directory per GPU that is shared by MPS. The agent's word goes first.
	MPSRoot string
	// Agent is the agent's socket; empty leaves it out.
	Agent string
	// RuncVersion is the version of a runc; nil reads it from the program.
	RuncVersion func(path string) (string, error)
	// Simulated hardware has no links in /dev/char.
	Simulated bool
	// Node is the node's name in the API; empty takes the agent's word.
	Node string
	// API is nil without an API server; NoAPI says why.
	API   API
	NoAPI string
}

// API reads what the API server has of a node.
type API interface {
	GPUNode(ctx context.Context, name string) (*v1alpha1.GPUNode, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// AgentPods are the agent's pods of all nodes.
	AgentPods(ctx context.Context) ([]corev1.Pod, error)
	// AgentMetrics reads the metrics of an agent's pod.
	AgentMetrics(ctx context.Context, pod *corev1.Pod) (map[string]*dto.MetricFamily, error)
}

// Run checks the node that this process is on.
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

// checker has what one check learnt for those after it.
type checker struct {
	deps Deps
	*report
	agentSays agentAnswer
	// version is the loaded driver's; empty when none is.
	version string
	gpus    []procGPU
	// berthSpecDir is the CDI directory that has Berth's spec.
	berthSpecDir string
}

// report collects findings.
type report struct{ out v1alpha1.Doctor }

func newReport(node string) *report {
	return &report{v1alpha1.Doctor{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindDoctor), Node: node, Findings: []v1alpha1.DoctorFinding{}}}
}

func (r *report) ok(check, format string, args ...any) {
	r.out.Findings = append(r.out.Findings, v1alpha1.DoctorFinding{Check: check, Status: v1alpha1.DoctorOK, Evidence: fmt.Sprintf(format, args...)})
}

// unknown is what could not be looked at although it should be there.
func (r *report) unknown(check, format string, args ...any) {
	r.out.Findings = append(r.out.Findings, v1alpha1.DoctorFinding{Check: check, Status: v1alpha1.DoctorCannotCheck, Evidence: fmt.Sprintf(format, args...)})
}

// problem adds a problem with the catalogue's severity and fix.
func (r *report) problem(check, code, format string, args ...any) {
	entry, known := problem.Find(code)
	if !known {
		// An agent of another version may know more.
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

// done sums up.
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

// some names a few of many.
func some(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// count is "1 GPU" or "3 GPUs".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// reason is an error without the path that the text around it has already.
func reason(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err.Error()
	}
	return err.Error()
}

// denied is an error that a check by root would not have.
func denied(err error) bool { return errors.Is(err, os.ErrPermission) }

func orRoot(path string) string { return cmp.Or(path, "/") }
