// Command hyperkube contains etcd and the four Kubernetes programs of the sandbox in one binary: they share most of
// their code, so one link of 200 MB replaces five. Its first argument (or the name that it is called by) selects the
// program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	args := os.Args
	if filepath.Base(args[0]) == "hyperkube" && len(args) > 1 {
		args = args[1:]
	}
	os.Args = args
	switch name := filepath.Base(args[0]); name {
	case "etcd":
		etcdmain.Main(args)
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		run(controllers.NewControllerManagerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kubelet":
		run(kubelet.NewKubeletCommand(context.Background()))
	default:
		fmt.Fprintf(os.Stderr, "hyperkube: unknown program %q: want etcd, kube-apiserver, kube-controller-manager, "+
			"kube-scheduler or kubelet\n", name)
		os.Exit(2)
	}
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }
