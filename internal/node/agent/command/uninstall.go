package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/agent/apichoice"
	"github.com/berth-gpu/berth/internal/node/agent/gpuhistory"
	"github.com/berth-gpu/berth/internal/node/agent/handover"
	"github.com/berth-gpu/berth/internal/node/agent/kubeletsync"
	"github.com/berth-gpu/berth/internal/node/agent/library"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/publish"
	"github.com/berth-gpu/berth/internal/node/gate"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/pages"
)

func newUninstallCommand(o *sharedFlags) *cobra.Command {
	host := &hostOptions{}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what agents created on this node and in the API",
		Long: `Remove what agents created on this node and in the API: the sockets of the device
plugin and the DRA driver, the CDI spec, the hook programs, the agent's sockets and
state, the node's labels, conditions and taints, its ResourceSlices, and the GPUNode
object, unless the account may not delete it, as the agent's own may not. A step that
fails is reported, and the others are still done. It can be repeated.

Stop the agent first, or it creates them again. Running containers keep their GPUs.
Until an agent runs again no GPU is advertised, and a container that uses a GPU
through CDI cannot be restarted. The directory of berth-agent mps (--mps-root)
stays until the next reboot. With --on-host it is removed, too, and so are the folders
that are empty then: /opt/berth, /run/berth and /var/lib/berth.`,
		Example: `  # After the DaemonSet was deleted, on the node
  berth-agent uninstall

  # With the directories that the agent was started with
  berth-agent uninstall --config /etc/berth/agent.yaml

  # From outside the cluster's pods
  berth-agent uninstall --kubeconfig /etc/kubernetes/admin.conf --node-name node-0

  # Only the files of this node; the API keeps its objects
  berth-agent uninstall --standalone

  # In a pod of berth uninstall --all, which mounts the node's root at /host
  berth-agent uninstall --standalone --host-root /host --on-host --hold`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.Load(cmd)
			if err != nil {
				return err
			}
			api, err := o.Connect(config)
			if err != nil {
				return fmt.Errorf("%w; uninstall --standalone removes only the files of this node", err)
			}
			kube, _, err := o.Clientsets(config)
			if err != nil {
				return err
			}
			config = host.Apply(config)
			if err := uninstall(cmd.Context(), config, host.PluginRoot(config), api, kube, cmd.OutOrStdout()); err != nil {
				return err
			}
			return host.Finish(cmd.Context(), config, cmd.OutOrStdout())
		},
	}
	host.Bind(cmd.Flags())
	return cmd
}

// step is one thing to remove.
type step struct {
	what   string
	remove func() error
}

// uninstall removes everything that agents left on the node and, unless api and kube are nil, in the API. It prints each
// step, and continues after one that failed. Each package removes what it owns. pluginRoot has the kubelet's folder device-plugins.
func uninstall(ctx context.Context, config *v1alpha1.AgentConfig, pluginRoot string, api dynamic.Interface, kube kubernetes.Interface, out io.Writer) error {
	steps := []step{
		{"sockets in " + filepath.Join(pluginRoot, "device-plugins"), func() error { return deviceplugin.Remove(pluginRoot) }},
		{"sockets of the DRA driver " + config.DRADriverName + " in " + config.KubeletDir, func() error { return dra.Remove(config.KubeletDir, config.DRADriverName) }},
		{"CDI spec in " + config.CDIDir, func() error { return cdi.New(cdi.Deps{Dir: config.CDIDir}).Remove() }},
		{"hook programs in " + config.HookDir, func() error { return cdi.RemoveHooks(config.HookDir) }},
		{"sockets in " + config.StateDir, func() error { return pages.Remove(config.StateDir) }},
		{"ledger in " + config.StateDir, func() error { return removeState(config.StateDir) }},
		{"journals and last good configuration in " + config.PersistentDir, func() error { return removePersistent(config.PersistentDir) }},
		{"validation files in " + gate.FilesDir, func() error { return gate.RemoveFiles(config.HostRoot) }},
		{"labels about the GPUs", func() error { return removeLabels(ctx, config, api) }},
	}
	if api != nil {
		steps = append(steps,
			step{"label " + configwatch.LabelMIGState + " of Node " + config.NodeName, func() error { return nodeapi.RemoveMIGState(ctx, api, config.NodeName) }},
			step{"conditions and taints of Node " + config.NodeName, func() error {
				return errors.Join(nodeapi.RemoveHealth(ctx, api, config.NodeName), nodeapi.RemoveGate(ctx, api, config.NodeName, v1alpha1.TaintNotValidated))
			}},
			step{"ResourceSlices of " + config.DRADriverName + " of Node " + config.NodeName, func() error { return publish.Remove(ctx, kube, config.DRADriverName, config.NodeName) }},
		)
		if mayDelete(ctx, kube, config.NodeName) {
			steps = append(steps, step{"GPUNode " + config.NodeName, func() error { return gpunode.Remove(ctx, api, config.NodeName) }})
		} else {
			defer fmt.Fprintf(out, "left GPUNode %[1]s: this account may not delete it; as an administrator: kubectl delete gpunode %[1]s\n", config.NodeName)
		}
	}
	var failed []error
	for _, step := range steps {
		if err := step.remove(); err != nil {
			failed = append(failed, fmt.Errorf("remove %s: %w", step.what, err))
			continue
		}
		fmt.Fprintln(out, "removed", step.what)
	}
	return errors.Join(failed...)
}

// mayDelete reports whether the caller may delete the GPUNode, which the agent's own account may not. Where that cannot be asked it is
// tried.
func mayDelete(ctx context.Context, kube kubernetes.Interface, node string) bool {
	of := v1alpha1.GPUNodes()
	review, err := kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authv1.SelfSubjectAccessReview{Spec: authv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authv1.ResourceAttributes{Group: of.Group, Resource: of.Resource, Verb: "delete", Name: node},
	}}, metav1.CreateOptions{})
	return err != nil || review.Status.Allowed
}

func removeState(dir string) error {
	err := errors.Join(
		allocatable.Remove(dir), inventory.Remove(dir), kubeletsync.RemoveGrants(dir), ledger.Remove(dir), library.Remove(dir),
		gate.Remove(dir), reset.Remove(dir), timeslice.Remove(dir), migsync.RemoveModes(dir),
	)
	removeIfEmpty(dir)
	return err
}

func removePersistent(dir string) error {
	err := errors.Join(migapply.Remove(dir), configwatch.Remove(dir), handover.Remove(dir), apichoice.Remove(dir), gpuhistory.Remove(dir))
	removeIfEmpty(dir)
	return err
}

// removeLabels removes the labels about the GPUs from every place that they may be in; api may be nil.
func removeLabels(ctx context.Context, config *v1alpha1.AgentConfig, api dynamic.Interface) error {
	places, err := labels.OutputsOf(config, api)
	if err != nil {
		return err
	}
	return places.Remove(ctx)
}

// removeIfEmpty removes a folder, or leaves it when it has files of other programs.
func removeIfEmpty(dir string) { _ = os.Remove(dir) }
