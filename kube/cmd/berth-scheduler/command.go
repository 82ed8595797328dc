package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"k8s.io/component-base/metrics/legacyregistry"
	kubernetes "k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/binding"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/podgroups"
	"github.com/berth-gpu/berth/internal/core/version"
	"github.com/berth-gpu/berth/kube/internal/plugins"
	"github.com/berth-gpu/berth/kube/internal/preemption"
)

// gcPercent is the garbage collector's target in place of Go's 100: with 5,000 nodes and 50,000 pods the objects of the cluster are 480 MB,
// which at 100 take more than 1 GB (docs/performance.md).
const gcPercent = 60

// boundHeap sets the garbage collector's target, unless the environment does.
func boundHeap(environ func(string) (string, bool)) {
	if _, set := environ("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
}

// newCommand returns the command line of kube-scheduler with Berth's plugins. The flag --version prints Berth's version beside that of
// Kubernetes; --version=raw is upstream's.
func newCommand() *cobra.Command {
	var options []app.Option
	for name, factory := range plugins.Registry(legacyregistry.Register) {
		options = append(options, app.WithPlugin(name, factory))
	}
	command := app.NewSchedulerCommand(options...)
	command.Use = "berth-scheduler"
	command.Long = `berth-scheduler is kube-scheduler with Berth's plugins compiled in. ` + placement.Name + ` chooses the node of a pod with GPUs by
the GPUs that it would get there, ` + gangs.Name + ` those of pods that are of use only together, ` + podgroups.Name + ` those of Kubernetes' own pod
groups (feature gate GenericWorkload), and ` + preemption.Name + ` the pods that end for one of a higher priority. ` + binding.Name + ` bounds how many pods are bound at a time, and keeps those of a node in order. It has the flags and the
configuration file of kube-scheduler, and the plugins run in the profiles of that file that enable them.`
	run := command.RunE
	command.RunE = func(cmd *cobra.Command, args []string) error {
		boundHeap(os.LookupEnv)
		// Upstream's flag is a word, not a bool, so cobra's own cannot take its place.
		if flag := cmd.Flags().Lookup("version"); flag == nil || flag.Value.String() != "true" {
			return run(cmd, args)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "berth-scheduler %s, Kubernetes %s\n", version.Current(), kubernetes.Get().GitVersion)
		return err
	}
	return command
}
