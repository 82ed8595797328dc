// Command berth-scheduler is kube-scheduler with Berth's plugins compiled in.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/placement"
)

func main() {
	plugins := placement.NewFactory(placement.Deps{Register: legacyregistry.Register})
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(placement.Name, plugins.New))))
}
