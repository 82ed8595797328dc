// Package round measures one run: a fresh control plane, its nodes and pods, then the scheduler, until all pods are bound. It
// guarantees that nothing of a run is left when it returns, and that each pod was bound once and no node was overcommitted.
package round

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/cluster"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/controlplane"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/scheduler"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

// errStalled is part of the error of a run in which no further pod is bound.
var errStalled = errors.New("none was bound within")

// sayEvery is the time between two lines of progress.
const sayEvery = 2 * time.Second

// Setup is what all runs share.
type Setup struct {
	// Program is the program with the command of controlplane.
	Program string
	// SchedulerCores and OtherCores divide the machine's cores; empty when all share all.
	SchedulerCores, OtherCores []int
	// Dir is where the runs write. It is theirs.
	Dir string
	// Stalled ends a run in which no pod was bound for this long.
	Stalled time.Duration
	// Lists is how the schedulers get the pods that are there when they start. Loads whose pods fit in their order only need Ordered.
	Lists controlplane.Lists
	// Profile asks for a CPU profile of the scheduler.
	Profile bool
	// ProfileFile is where the profile of the last run is kept, in pprof's format; empty: nowhere.
	ProfileFile string
	// Say prints a line of progress. It may be called from several goroutines.
	Say func(format string, arguments ...any)
}

// Run measures a scheduler with pods that were made by the load of this name.
func (s Setup) Run(ctx context.Context, kind scheduler.Kind, name string, nodes int, pods []load.Pod) (report.Run, error) {
	dir := filepath.Join(s.Dir, "run")
	defer os.RemoveAll(dir)
	r, err := s.run(ctx, kind, dir, nodes, pods)
	if err != nil {
		return report.Run{}, fmt.Errorf("run %s with the load %s: %w", kind.Name, name, err)
	}
	r.Load, r.Scheduler, r.Nodes = name, kind.Name, nodes
	return r, nil
}

func (s Setup) run(ctx context.Context, kind scheduler.Kind, dir string, nodes int, pods []load.Pod) (report.Run, error) {
	server, err := controlplane.Start(ctx, s.Program, dir, s.OtherCores, s.Lists)
	if err != nil {
		return report.Run{}, err
	}
	defer server.Stop()
	c, err := cluster.New(server.Config, server.Process, s.created(kind.Name))
	if err != nil {
		return report.Run{}, err
	}
	if err := c.Fill(ctx, nodes, pods, kind.ProfileName); err != nil {
		return report.Run{}, err
	}
	watch, err := watchbinds.Start(ctx, c.Client, cluster.Namespace, watchbinds.NodeLimits(cluster.Resource))
	if err != nil {
		return report.Run{}, err
	}
	defer watch.Stop()
	process, err := scheduler.Start(ctx, kind, server.Kubeconfig, dir, s.SchedulerCores)
	if err != nil {
		return report.Run{}, err
	}
	defer process.Stop()
	var profiler *scheduler.Profiler
	if s.Profile {
		profiler = process.Profile(ctx)
	}
	progress, err := s.waitBound(ctx, kind.Name, len(pods), watch, process)
	overlooked := 0
	if errors.Is(err, errStalled) {
		// Pods for which the scheduler finds no node are a result. That it does nothing is not.
		overlooked, err = s.explain(ctx, kind.Name, c, func(p *corev1.Pod) bool { return watch.Fits(p, nodes) }, err)
	}
	if err != nil {
		return report.Run{}, err
	}
	r, err := s.measure(ctx, progress, process, profiler, pods)
	r.Overlooked = overlooked
	return r, err
}

// measure reads what the scheduler has used, before anything else is asked of it. There may be no profiler.
func (s Setup) measure(ctx context.Context, progress watchbinds.Progress, process *scheduler.Scheduler, profiler *scheduler.Profiler,
	pods []load.Pod) (report.Run, error) {
	used, err := process.Used()
	if err != nil {
		return report.Run{}, err
	}
	counts, err := process.Metrics(ctx)
	if err != nil {
		return report.Run{}, err
	}
	perPod := func(seconds float64) float64 { return seconds * 1e6 / float64(len(pods)) }
	seconds := progress.Last.Sub(progress.First).Seconds()
	r := report.Run{
		Pods: len(pods), Unbound: len(pods) - progress.Bound, GPUs: load.GPUs(pods), Seconds: seconds, PodsPerSecond: float64(progress.Bound) / seconds,
		CPUSeconds: used.CPU.Seconds(), PeakBytes: used.PeakBytes,
		Reused: counts.Reused, PluginCalls: counts.PluginCalls, ScoringMicroseconds: perPod(counts.Scoring.Seconds()),
	}
	if profiler != nil {
		profile, err := profiler.Stop(s.ProfileFile)
		if err != nil {
			return report.Run{}, err
		}
		// The windows of the profiler have gaps between them.
		share := used.CPU.Seconds() / max(profile.All.Seconds(), 0.01)
		r.Profile = &report.Profile{ScoringMicroseconds: perPod(profile.Scoring.Seconds() * share),
			BerthMicroseconds: perPod(profile.Berth.Seconds() * share), SampledSeconds: profile.All.Seconds()}
	}
	return r, nil
}

// waitBound waits until all pods are bound. It fails when the scheduler ends, when no pod was bound for a while, and when a bind was
// wrong.
func (s Setup) waitBound(ctx context.Context, name string, pods int, watch *watchbinds.Watch,
	process *scheduler.Scheduler) (watchbinds.Progress, error) {
	line := time.NewTicker(sayEvery)
	defer line.Stop()
	stalled := time.NewTimer(s.Stalled)
	defer stalled.Stop()
	for {
		progress, err := watch.Progress()
		if err != nil || progress.Bound >= pods {
			return progress, err
		}
		select {
		case <-ctx.Done():
			return progress, context.Cause(ctx)
		case <-process.Done():
			return progress, process.Ended()
		case <-stalled.C:
			return progress, fmt.Errorf("%d of %d pods are bound, and %w %v; the scheduler's last output:\n%s",
				progress.Bound, pods, errStalled, s.Stalled, process.Tail())
		case <-watch.Changes():
			stalled.Reset(s.Stalled)
		case <-line.C:
			s.Say("%s: %d of %d pods bound%s", name, progress.Bound, pods, speed(progress))
		}
	}
}

// speed is the part of a line that says how fast pods are bound.
func speed(p watchbinds.Progress) string {
	seconds := p.Last.Sub(p.First).Seconds()
	if seconds <= 0 {
		return ""
	}
	return fmt.Sprintf(", %.0f per second", float64(p.Bound)/seconds)
}

// explain prints what the scheduler said of one of the pods without a node, and returns how many of them fit on a node. When it has
// not said of each that it finds no node, explain returns the error that led here.
func (s Setup) explain(ctx context.Context, name string, c *cluster.Cluster, fits func(*corev1.Pod) bool, stalled error) (int, error) {
	list, err := c.Client.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return 0, errors.Join(stalled, fmt.Errorf("look for the pods that are not bound: %w", err))
	}
	why, err := judge(list.Items)
	if err != nil {
		return 0, errors.Join(stalled, err)
	}
	overlooked := 0
	for i := range list.Items {
		if fits(&list.Items[i]) {
			overlooked++
		}
	}
	s.Say("%s: %d pods got no node, and %d of them fit on a node; %s", name, len(list.Items), overlooked, why)
	return overlooked, nil
}

// judge returns what the scheduler has said of one of the pods without a node. It fails unless it has said of each that it finds none.
func judge(pods []corev1.Pod) (string, error) {
	if len(pods) == 0 {
		return "", errors.New("all pods are bound; the watch missed some")
	}
	for i := range pods {
		if _, said := refusal(&pods[i]); !said {
			return "", fmt.Errorf("the scheduler says nothing of pod %s", pods[i].Name)
		}
	}
	why, _ := refusal(&pods[0])
	return pods[0].Name + ": " + why, nil
}

// refusal returns why the scheduler finds no node for a pod; false if it has not said so.
func refusal(pod *corev1.Pod) (string, bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return strings.TrimSpace(c.Message), true
		}
	}
	return "", false
}

// created returns what prints the progress of the objects that are created.
func (s Setup) created(name string) func(kind string, done, all int) {
	var mu sync.Mutex
	last := time.Now()
	return func(kind string, done, all int) {
		mu.Lock()
		defer mu.Unlock()
		if done == 1 {
			last = time.Now()
		}
		if time.Since(last) < sayEvery {
			return
		}
		last = time.Now()
		s.Say("%s: %d of %d %s created", name, done, all, kind)
	}
}
