package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/fit"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

func newFitCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var file, node string
	cmd := &cobra.Command{
		Use:   "fit -f FILE",
		Short: "Say whether a ResourceClaim or pod would get its devices now, where, and what is in the way",
		Long: `Say whether ResourceClaims, ResourceClaimTemplates and pods of a file would get their devices
now: on which nodes, with which devices, and if not, what is in the way on each node. Nothing
is created. The answer is that of the allocator of the Kubernetes scheduler, for the cluster's
ResourceSlices, DeviceClasses, DeviceTaintRules and allocated claims, with the feature gates
that are on by default in Kubernetes 1.37.

A pod is checked with all of its claims, and with the claim that the scheduler makes for its
extended resources; its node name, node selector, required affinity and tolerations are taken
into account. CPU, memory and the other rules of the scheduler are not. A claim or template
that a pod of the file names is checked with that pod, any other one alone. What is not in the
file is taken from the cluster.

Each pod and each claim is checked as if it were the only one of the file. The exit code is 0
when all fit, 1 when one does not, and 2 when the file is wrong or the API server cannot be
read.`,
		Example: `  berth fit -f claim.yaml
  berth fit -f pod.yaml -n ml               objects without a namespace are in ml
  berth fit -f pod.yaml --node node-0       only this node
  kubectl get pod train -o yaml | berth fit -f -
  berth fit -f claim.yaml -o json | jq -r '.items[].nodes[] | select(.fits) | .name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if file == "" {
				return usagef("want a file: -f FILE, or -f - for the standard input")
			}
			answer, err := checkFit(cmd.Context(), &from, cmd.InOrStdin(), file, node)
			if err != nil {
				return err
			}
			if err := out.print(deps.Out, answer, func(w io.Writer) error { return fitText(w, answer) }); err != nil {
				return err
			}
			if !answer.Fits {
				return errDoesNotFit
			}
			return nil
		},
	}
	from.bindKube(cmd.Flags())
	from.connection.AddNamespace(cmd.Flags(), "the namespace of objects without one (default: the context's)")
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file with the claims and pods, in YAML or JSON; - for the standard input")
	cmd.Flags().StringVar(&node, "node", "", "check only this node")
	out.bind(cmd.Flags())
	return cmd
}

// maxFitFile bounds what is read as a file of claims.
const maxFitFile = 16 << 20

func checkFit(ctx context.Context, from *sources, in io.Reader, path, node string) (*v1alpha1.Fit, error) {
	data, err := readFitFile(in, path)
	if err != nil {
		return nil, err
	}
	settings := fit.Defaults()
	file, err := fit.Parse(path, data, from.connection.Namespace(), settings)
	if err != nil {
		return nil, err
	}
	api, noAPI := from.api()
	if api == nil {
		return nil, &hintError{fmt.Errorf("fit: no API server: %s", noAPI), "fix: " + from.connection.Fix()}
	}
	objects, err := readFit(ctx, api.Client, file)
	if err != nil {
		return nil, apiError(fmt.Errorf("fit: %w", err), "")
	}
	if err := knownNode(objects.Nodes, node); err != nil {
		return nil, err
	}
	workloads, err := file.Workloads(objects.Claims, objects.templates)
	if err != nil {
		return nil, err
	}
	answer := &v1alpha1.Fit{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindFit), Fits: true, Items: []v1alpha1.FitItem{}}
	checker := fit.New(objects.Cluster, settings)
	for i := range workloads {
		item, err := checker.Check(ctx, &workloads[i], node)
		if err != nil {
			return nil, fmt.Errorf("check %s %s: %w", item.Kind, item.Name, err)
		}
		answer.Fits = answer.Fits && item.Fits
		answer.Items = append(answer.Items, item)
	}
	return answer, nil
}

func readFitFile(in io.Reader, path string) ([]byte, error) {
	if path != "-" {
		opened, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the file of --file: %w", err)
		}
		defer opened.Close()
		in = opened
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFitFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the file of --file: %w", err)
	}
	if len(data) > maxFitFile {
		return nil, fmt.Errorf("read the file of --file: it is larger than %d MiB", maxFitFile>>20)
	}
	return data, nil
}

// knownNode returns an error for a name that no Node has. An empty name is every node.
func knownNode(nodes []corev1.Node, name string) error {
	var names []string
	for i := range nodes {
		names = append(names, nodes[i].Name)
	}
	if name == "" || slices.Contains(names, name) {
		return nil
	}
	return noSuchNode("Node "+name+" of --node", name, names)
}

// mostFitNodes is how many nodes with one answer are named in a line.
const mostFitNodes = 4

// fitText prints the answer for people: nodes with the same reasons are in one line.
func fitText(w io.Writer, answer *v1alpha1.Fit) error {
	var text strings.Builder
	for i := range answer.Items {
		item := &answer.Items[i]
		fitting := 0
		for _, node := range item.Nodes {
			if node.Fits {
				fitting++
			}
		}
		fmt.Fprintf(&text, "%s %s/%s fits on %d of %d nodes\n", item.Kind, item.Namespace, item.Name, fitting, len(item.Nodes))
		for _, reason := range item.Reasons {
			fmt.Fprintf(&text, "  every node: %s\n", term.Clean(reason.Message))
		}
		fitNodes(&text, item)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func fitNodes(text *strings.Builder, item *v1alpha1.FitItem) {
	var order []string
	names := map[string][]string{}
	for _, node := range item.Nodes {
		var lines strings.Builder
		for _, device := range node.Devices {
			if node.Fits {
				fmt.Fprintf(&lines, "    %s: %s of %s, pool %s\n", term.Clean(requestTitle(&device)), term.Clean(device.Device), term.Clean(device.Driver), term.Clean(device.Pool))
			}
		}
		for _, served := range node.DevicePlugin {
			if node.Fits {
				fmt.Fprintf(&lines, "    %d %s: the node's device plugin serves it and has %d free\n", served.Requested, term.Clean(served.Resource), served.Free)
			}
		}
		for _, reason := range node.Reasons {
			fmt.Fprintf(&lines, "    %s\n", term.Clean(reason.Message))
		}
		key := "does not fit\n" + lines.String()
		switch {
		case node.Fits:
			key = "fits\n" + lines.String()
		case lines.Len() == 0:
			continue // What is in the way on every node is printed above.
		}
		if names[key] == nil {
			order = append(order, key)
		}
		names[key] = append(names[key], term.Clean(node.Name))
	}
	for _, key := range order {
		fmt.Fprintf(text, "  %s: %s", phrase.Some(names[key], mostFitNodes), key)
	}
}

func requestTitle(device *v1alpha1.FitDevice) string {
	title := "extended resources, request " + device.Request
	if device.Claim != "" {
		title = "claim " + device.Claim + ", request " + device.Request
	}
	if device.AdminAccess {
		title += " (admin access)"
	}
	return title
}
