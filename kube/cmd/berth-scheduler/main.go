// Command berth-scheduler is kube-scheduler with Berth's plugins compiled in.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
)

func main() {
	plugins := placement.NewFactory()
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(placement.Name, plugins.New))))
}
