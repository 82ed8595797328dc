// Package command is the command line of berth-sandbox.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/cli/version"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// Exit codes beside 0 and 1.
const (
	// ExitMissing: the machine lacks something.
	ExitMissing = 2
	// ExitTimeout: a pod did not run in time.
	ExitTimeout = 3
)

// ExitCode maps an error of the command to the exit code of the program.
func ExitCode(err error) int {
	var missing *sandbox.RequirementsError
	var waited *sandbox.WaitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &missing):
		return ExitMissing
	case errors.As(err, &waited):
		return ExitTimeout
	}
	return 1
}

// New returns the command line.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth-sandbox",
		Short: "A real Kubernetes with simulated GPUs on one machine",
		Long: `berth-sandbox runs a real Kubernetes on this machine: etcd, the API server,
the controller manager, the scheduler and, per node, a kubelet with a containerd
of its own. It needs root and runc, downloads nothing, and "down" leaves nothing
behind.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	version.AddTo(root)
	dir := root.PersistentFlags().String("dir", sandbox.DefaultDir, "directory that holds everything of the sandbox")
	root.AddCommand(upCommand(dir), downCommand(dir), statusCommand(dir), kubeconfigCommand(dir), runCommand(dir),
		execCommand(dir), logsCommand(dir), rebootCommand(dir), fakeCRICommand())
	usage.Prepare(root)
	return root
}

func upCommand(dir *string) *cobra.Command {
	var o sandbox.Options
	var timeout time.Duration
	var gates string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the sandbox, or show it if it runs",
		Example: `  berth-sandbox up                          one node without GPUs
  berth-sandbox up --profile a100x8-80g     one node with 8 simulated A100 and berth-agent
  berth-sandbox up --profile a100x8-80g --helm
                                            the same, installed with Helm from the chart
  berth-sandbox up --nodes 2 --hollow 20    2 real nodes, 20 that only record
  berth-sandbox up --nodes 2 --profile a100x8-80g --node-profile node-1=h100x8
                                            another machine as the second node
  berth-sandbox up --profile a100x8-80g --helm --api-nodes 200
                                            200 further nodes that are objects of the API only
  berth-sandbox up --api-nodes 20 --api-node-profile 'api-node-000*=h100x8' --api-node-profile 'api-node-001*=v100x8-hybrid-mesh'
                                            10 of one machine and 10 of another
  berth-sandbox up --scheduler berth-scheduler --scheduler-config scheduler.yaml
                                            another scheduler in place of the cluster's own
  berth-sandbox up --feature-gates GenericWorkload=true,TopologyAwareWorkloadScheduling=true --runtime-config scheduling.k8s.io/v1beta1=true
                                            PodGroups of Kubernetes; berth-scheduler has the value scheduler.featureGates of the chart`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Dir, o.Progress = *dir, cmd.OutOrStdout()
			var err error
			if o.FeatureGates, err = sandbox.ParseGates(gates); err != nil {
				return err
			}
			ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer cancel()
			ctx, stop := withTimeout(ctx, timeout)
			defer stop()
			c, err := sandbox.Up(ctx, o)
			if err != nil {
				return err
			}
			return c.WriteStatus(ctx, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 1, "nodes that run containers")
	f.IntVar(&o.Hollow, "hollow", 0, "further nodes with a real kubelet whose container runtime only records")
	f.IntVar(&o.APINodes, "api-nodes", 0, "further nodes that are objects of the API only, whose pods kwok starts and ends")
	f.StringToStringVar(&o.APINodeProfiles, "api-node-profile", nil,
		"simulated machine that the GPUNode of an API node describes, as api-node-0003=h100x8 or 'api-node-00*=h100x8' (repeatable)")
	f.StringVar(&o.Scheduler, "scheduler", "", "program to run in place of kube-scheduler, for example berth-scheduler")
	f.StringVar(&o.SchedulerConfig, "scheduler-config", "", "file with a KubeSchedulerConfiguration for the scheduler; the sandbox adds the kubeconfig")
	f.StringVar(&o.Profile, "profile", "", "simulated hardware of every node, for example a100x8-80g (see berth sim)")
	f.StringToStringVar(&o.NodeProfiles, "node-profile", nil, "simulated hardware of one node in place of --profile, as node-1=h100x8 (repeatable)")
	f.StringToStringVar(&o.NodeCliques, "node-clique", nil,
		"NVLink fabric of several nodes that the simulated GPUs of one node have joined, as node-1=CLUSTER-UUID.CLIQUE-ID (repeatable)")
	f.StringToStringVar(&o.RuntimeConfig, "runtime-config", nil, "API versions that kube-apiserver serves, as scheduling.k8s.io/v1beta1=true (repeatable)")
	f.StringVar(&gates, "feature-gates", "", "feature gates of every component of Kubernetes, as A=true,B=false")
	f.BoolVar(&o.NoAgent, "no-agent", false, "make the simulated hardware but install nothing of Berth")
	f.BoolVar(&o.Helm, "helm", false, "install the chart with Helm, in place of an agent of its own on each node")
	f.StringArrayVar(&o.HelmValues, "helm-values", nil, "further values file of the chart, with --helm (repeatable)")
	f.StringArrayVar(&o.Agent.Args, "agent-arg", nil, "further argument of every berth-agent (repeatable)")
	f.StringArrayVar(&o.Agent.Dirs, "agent-dir", nil, "directory that every agent's container has at the same path, for example of a --config (repeatable)")
	f.StringArrayVar(&o.Manifests, "apply", nil, "file or folder of objects to create before the agents start (repeatable)")
	f.StringVar(&o.Bin, "bin", "", "directory of the programs (default: the directory of berth-sandbox)")
	f.DurationVar(&timeout, "timeout", 3*time.Minute, "give up after this time")
	return cmd
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the sandbox: processes, mounts, cgroups, network, files",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return sandbox.CheckMachine()
			}
			return sandbox.Down(cmd.Context(), *dir, cmd.OutOrStdout())
		},
	}
}

func statusCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the sandbox and its health",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := sandbox.Open(*dir)
			if err != nil {
				return err
			}
			return c.WriteStatus(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func kubeconfigCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of a kubeconfig with all rights",
		Example: "  export KUBECONFIG=$(berth-sandbox kubeconfig)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := sandbox.Open(*dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), c.KubeconfigPath())
			return err
		},
	}
}

func runCommand(dir *string) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "run POD.yaml",
		Short: "Create the objects of a file and wait for its pods",
		Long: `run creates every object of the file and waits until its pods run or have
ended. While a pod is Pending it prints why: the scheduler's condition, what its
containers wait for, and its last events. After --timeout it ends with code 3; the
objects stay, and the pod may still start. The only images are ` + sandbox.WorkloadImage + ` (its commands: see
"workload" without arguments) and those imported since.`,
		Example: `  berth-sandbox run docs/examples/two-gpus.yaml
  berth-sandbox run docs/examples/two-gpus.yaml --timeout 10s
                                            give up early, for example when no GPU is free`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sandbox.Open(*dir)
			if err != nil {
				return err
			}
			ctx, stop := withTimeout(cmd.Context(), timeout)
			defer stop()
			return c.RunFile(ctx, cmd.OutOrStdout(), args[0])
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up when a pod does not run after this time, with exit code 3")
	return cmd
}

func logsCommand(dir *string) *cobra.Command {
	var lines int
	cmd := &cobra.Command{
		Use:   "logs [PROCESS]",
		Short: "List the logs, or print that of one process",
		Example: `  berth-sandbox logs
  berth-sandbox logs node-0-kubelet`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sandbox.Open(*dir)
			if err != nil {
				return err
			}
			return c.WriteLogs(cmd.OutOrStdout(), strings.Join(args, ""), lines)
		},
	}
	cmd.Flags().IntVarP(&lines, "lines", "n", 0, "only the last lines")
	return cmd
}

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %s", d))
}
