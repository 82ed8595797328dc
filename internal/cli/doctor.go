package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/doctor"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/problem"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newDoctorCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var mpsRoot string
	cmd := &cobra.Command{
		Use:   "doctor [NODE]",
		Short: "Check a node and report each problem with its fix",
		Long: `Check the node that the command runs on: driver, libraries, device nodes and their links in
/dev/char, CDI specs, the container runtime's configuration, the kubelet's sockets, cgroups,
the agent, and what the API has of the node. It changes nothing and does not call the driver,
so a driver that hangs does not block it.

With NODE it reports, from any machine, what the node's API objects and the metrics of the
agent's pod show. The metrics are read through the API server, which requires the verb get on
pods/proxy in the agent's namespace. ResourceQuotas are looked at if the user may list them.

Each problem has a code, which docs/problems.md explains. The exit code is 0 for a node without
problems, 1 for a node with problems, 2 if something could not be checked or there is no such node.`,
		Example: `  berth doctor                              of this node, as root
  berth doctor node-0                       from a laptop
  berth doctor --sim /tmp/node              of a simulated node
  berth doctor -o json | jq '.findings[] | select(.status == "problem")'`,
		Args: atMostOneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			report, err := examine(cmd.Context(), &from, mpsRoot, args)
			if err != nil {
				return err
			}
			if err := out.Print(deps.Out, report, print.Of(report.Findings, nil), func(w io.Writer) error { return doctorTable(w, report, &out.Flags) }); err != nil {
				return err
			}
			switch report.Verdict {
			case v1alpha1.DoctorProblems:
				return errProblems
			case v1alpha1.DoctorUnknown:
				return errNotAllChecked
			}
			return nil
		},
	}
	from.bind(cmd.Flags(), deps)
	cmd.Flags().StringVar(&mpsRoot, "mps-root", "", "the host's directory of MPS daemons (default: the agent's, then /run/berth/mps)")
	out.AddTo(cmd.Flags(), print.Offer{List: "findings", Field: "check"})
	return cmd
}

// examine checks the node with that name from its API objects, or this node itself.
func examine(ctx context.Context, from *sources, mpsRoot string, args []string) (*v1alpha1.Doctor, error) {
	api, noAPI := from.api()
	here := slices.ContainsFunc(localFlags(), from.flags.Changed)
	if err := from.required("doctor", api, noAPI); err != nil {
		return nil, err
	}
	if len(args) == 1 {
		switch {
		case here:
			return nil, usagef("doctor %s: a node name is looked up in the API; leave it out to check this node", args[0])
		case api == nil:
			return nil, &hintError{fmt.Errorf("doctor %s: no API server: %s", args[0], noAPI),
				"fix: give --kubeconfig FILE, or run berth doctor on the node itself, as root"}
		}
		reader := nodeReader{api, api.Client}
		if err := reader.known(ctx, args[0]); err != nil {
			return nil, err
		}
		return doctor.OfNode(ctx, reader, args[0]), nil
	}
	if !here && !from.onNode() {
		if api != nil {
			return nil, usagef("doctor: this is no node (there is no %s): give the name of a node, or --kubelet-dir",
				from.pluginDir())
		}
		return nil, from.nothingToRead("doctor", noAPI, "  berth doctor --sim DIR                a simulated node")
	}
	places := from.find()
	deps := doctor.Deps{
		Vendor:   nvidia.Traits(),
		HostRoot: from.hostRoot, DriverRoot: places.driver, DevRoot: places.dev, Proc: places.Proc, Cgroup: filepath.Join(from.hostRoot, "sys/fs/cgroup"),
		KubeletDir: places.KubeletDir, PluginDir: places.pluginDir, KubeletRuns: from.places.KubeletDir == "" && places.host.Kubelet.PID != 0, CDIDirs: places.CDIDirs, Runtime: places.host.Runtime, RuntimeSocket: places.runtimeSocket, MPSRoot: mpsRoot,
		Agent: places.Agent, Node: places.Node, NoAPI: noAPI,
	}
	if api != nil {
		deps.API = nodeReader{api, api.Client}
	}
	if from.sim != "" {
		roots, err := nvidia.RootsBelow(from.sim)
		if err != nil {
			return nil, fmt.Errorf("open simulated hardware: %w", err)
		}
		deps.DriverRoot, deps.DevRoot, deps.Proc, deps.Simulated = roots.Driver, roots.Driver, roots.Proc, true
	}
	return doctor.Run(ctx, deps), nil
}

// known returns an error for a name that neither a Node nor a GPUNode has. What cannot be read is one of the findings.
func (r nodeReader) known(ctx context.Context, name string) error {
	if _, err := r.Node(ctx, name); !apierrors.IsNotFound(err) {
		return nil
	}
	if _, err := r.GPUNode(ctx, name); !apierrors.IsNotFound(err) {
		return nil
	}
	names, err := r.NodeNames(ctx, "")
	if err != nil {
		names = nil // The suggestion is optional.
	}
	return noSuchNode("Node "+name, name, names)
}

// nodeReader reads nodes and GPUNodes from an API server.
type nodeReader struct {
	*evidence.API
	client dynamic.Interface
}

func (r nodeReader) GPUNode(ctx context.Context, name string) (*v1alpha1.GPUNode, error) {
	object, err := r.client.Resource(v1alpha1.GPUNodes()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return gpunode.Decode(object)
}

func (r nodeReader) Node(ctx context.Context, name string) (*corev1.Node, error) {
	object, err := r.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, node); err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	return node, nil
}

// ResourceQuotas implements [doctor.API]. What is beyond the first page is left out: users write quotas.
func (r nodeReader) ResourceQuotas(ctx context.Context) ([]corev1.ResourceQuota, error) {
	quotaResource := schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}
	list, err := r.client.Resource(quotaResource).List(ctx, metav1.ListOptions{Limit: 1000})
	if err != nil {
		return nil, err
	}
	quotas := make([]corev1.ResourceQuota, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &quotas[i]); err != nil {
			return nil, fmt.Errorf("read ResourceQuota %s/%s: %w", list.Items[i].GetNamespace(), list.Items[i].GetName(), err)
		}
	}
	return quotas, nil
}

// doctorTable prints the findings and, below them, what the problems mean and how to fix them.
func doctorTable(w io.Writer, report *v1alpha1.Doctor, view *print.Flags) error {
	var rows [][]string
	var codes []string
	for _, finding := range report.Findings {
		evidence := finding.Evidence
		if finding.Status == v1alpha1.DoctorProblem {
			evidence = finding.Code + ": " + evidence
			if !slices.Contains(codes, finding.Code) {
				codes = append(codes, finding.Code)
			}
		}
		rows = append(rows, []string{finding.Check, statusText(finding), evidence})
	}
	for _, one := range report.NotChecked {
		rows = append(rows, []string{one.Check, "-", "not checked: " + one.Why})
	}
	if err := view.Table(w, []string{"CHECK", "STATUS", "EVIDENCE"}, rows); err != nil || view.RowsOnly() {
		return err
	}
	for _, code := range codes {
		at := slices.IndexFunc(report.Findings, func(f v1alpha1.DoctorFinding) bool { return f.Code == code })
		entry, _ := problem.Find(code)
		root := &term.Node{Text: code + ": " + cmp.Or(entry.Title, "unknown to this version of berth")}
		if entry.Meaning != "" {
			root.Add(entry.Meaning, "")
		}
		root.Add("fix: "+report.Findings[at].Fix, "")
		if err := term.Tree(w, []*term.Node{{}, root}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdictText(report))
	return err
}

func statusText(finding v1alpha1.DoctorFinding) string {
	switch finding.Status {
	case v1alpha1.DoctorProblem:
		return finding.Severity
	case v1alpha1.DoctorCannotCheck:
		return "unknown"
	}
	return "ok"
}

func verdictText(report *v1alpha1.Doctor) string {
	name := "this node"
	if report.Node != "" {
		name = report.Node
	}
	switch report.Verdict {
	case v1alpha1.DoctorProblems:
		return term.Clean(name) + " has problems"
	case v1alpha1.DoctorUnknown:
		return "no problem was found on " + term.Clean(name) + ", but not everything could be checked"
	}
	return term.Clean(name) + " is healthy"
}
