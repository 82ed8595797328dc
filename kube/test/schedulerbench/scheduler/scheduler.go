// Package scheduler runs a scheduler under test as a process of its own: its configuration, its start, and what its metrics say. It
// knows the stock kube-scheduler with its defaults, and berth-scheduler with the profile that Berth ships. It must not import the
// scheduler framework.
package scheduler

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
)

// Plugin is the name of Berth's plugin in configurations and metrics.
const Plugin = "BerthPlacement"

// Feature gates of Kubernetes' own gang scheduling.
const (
	// GangGate switches it on.
	GangGate = "GenericWorkload"
	// TopologyGate lets a gang demand nodes with one value of a label. It needs the other one.
	TopologyGate = "TopologyAwareWorkloadScheduling"
)

// Kind is a scheduler under test.
type Kind struct {
	// Name is how results name it.
	Name string
	// ProfileName is the schedulerName of its pods.
	ProfileName string
	// Argv is the command line of the program, without flags.
	Argv []string
	// InTree is a scheduler that schedules gangs with Kubernetes' own gang scheduling. Any other reads Berth's labels of the pods.
	InTree bool
	// Gates are feature gates that are switched on.
	Gates []string
	// QPS is how many requests per second its client may send, and at once. Kubernetes' own default is 50 and 100.
	QPS int
	// profile is the profile in YAML, without its name.
	profile string
}

// Stock is the stock kube-scheduler with its default configuration.
func Stock(argv ...string) Kind {
	return Kind{Name: "stock", ProfileName: "default-scheduler", Argv: argv, InTree: true}
}

// OursInTree is berth-scheduler that leaves gangs to Kubernetes' own gang scheduling.
func OursInTree(argv ...string) Kind {
	k := Ours(argv...)
	k.Name, k.InTree = "berth-intree", true
	return k
}

// For returns the kind with the feature gates that it needs for gangs, and for gangs that have to be within a part of the cluster.
func (k Kind) For(gangs, topology bool) Kind {
	k.Gates = nil
	if k.InTree && gangs {
		k.Gates = []string{GangGate}
		if topology {
			k.Gates = append(k.Gates, TopologyGate)
		}
	}
	return k
}

// Ours is berth-scheduler with the profile that Berth ships. The weight is above 100 x the sum of the others (13 in Kubernetes 1.37),
// so that no other plugin outweighs one step of ours.
func Ours(argv ...string) Kind {
	return Kind{Name: "ours", ProfileName: "berth-scheduler", Argv: argv, profile: `
  percentageOfNodesToScore: 100
  plugins:
    multiPoint:
      enabled:
      - name: ` + Plugin + `
        weight: 10000
      - name: BerthGangs
      - name: BerthPreemption
      - name: BerthBinding
      - name: BerthPodGroups
        weight: 2000000
      disabled:
      - name: DefaultPreemption
      - name: TopologyPlacementGenerator
    queueSort:
      enabled:
      - name: BerthGangs
      disabled:
      - name: PrioritySort
    preFilter:
      enabled:
      - name: BerthPodGroups
    postFilter:
      enabled:
      - name: ` + Plugin + `
    podGroupPostFilter:
      enabled:
      - name: BerthPreemption
    bind:
      enabled:
      - name: BerthGangs
      - name: BerthBinding
    score:
      disabled:
      - name: NodeResourcesFit
      - name: NodeResourcesBalancedAllocation
  pluginConfig:
  - name: ` + Plugin + `
    args:
      policy: pack
  - name: BerthGangs
    args:
      reserveAfterSeconds: 60
  - name: PodTopologySpread
    args:
      defaultingType: List
`}
}

// configuration returns the KubeSchedulerConfiguration. The burst of the client is as high as its rate.
func (k Kind) configuration(kubeconfig string) string {
	return fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: %s
  qps: %d
  burst: %d
profiles:
- schedulerName: %s%s`, kubeconfig, k.QPS, k.QPS, k.ProfileName, k.profile)
}

// Scheduler is a scheduler that runs.
type Scheduler struct {
	*process.Process
	address string
	client  *http.Client
}

// Start starts a scheduler on the given cores against an API server. Its files are in dir. The caller stops it.
func Start(ctx context.Context, k Kind, kubeconfig, dir string, cores []int) (*Scheduler, error) {
	port, err := process.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "scheduler.yaml")
	if err := os.WriteFile(config, []byte(k.configuration(kubeconfig)), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of a scheduler: %w", err)
	}
	s := &Scheduler{address: fmt.Sprintf("https://127.0.0.1:%d", port), client: &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	argv := append(append([]string{}, k.Argv...), "--config="+config, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--authentication-skip-lookup", "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics,/debug/pprof/*")
	if len(k.Gates) > 0 {
		argv = append(argv, "--feature-gates="+strings.Join(k.Gates, "=true,")+"=true")
	}
	if s.Process, err = process.Start(dir, "scheduler", cores, argv...); err != nil {
		return nil, err
	}
	return s, nil
}

// WaitReady waits until the scheduler has read what the API server has, and schedules what comes.
func (s *Scheduler) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return s.Wait(ctx, "the scheduler", func(ctx context.Context) error {
		body, err := s.get(ctx, "/readyz")
		if err != nil {
			return err
		}
		return body.Close()
	})
}

// Metrics reads what the scheduler's metrics say.
func (s *Scheduler) Metrics(ctx context.Context) (Counts, error) {
	body, err := s.get(ctx, "/metrics")
	if err != nil {
		return Counts{}, fmt.Errorf("read the metrics of the scheduler: %w", err)
	}
	defer body.Close()
	counts, err := parse(body)
	if err != nil {
		return Counts{}, fmt.Errorf("read the metrics of the scheduler: %w", err)
	}
	return counts, nil
}

// get returns the body of a page, which the caller closes.
func (s *Scheduler) get(ctx context.Context, page string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address+page, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}
