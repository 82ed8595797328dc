// Package round measures one run: a fresh control plane, its nodes and pods, then the scheduler, until all pods are bound, or refused where
// none can be bound. It guarantees that nothing of a run is left when it returns, and that each pod was bound once and no node was
// overcommitted.
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
	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/scheduler"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

// errStalled is part of the error of a run in which nothing more happens.
var errStalled = errors.New("nothing happened within")

// sayEvery is the time between two lines of progress.
const sayEvery = 2 * time.Second

// Setup is what all runs share.
type Setup struct {
	// Program is the program with the command of controlplane.
	Program string
	// SchedulerCores and OtherCores divide the machine's cores; empty when all share all.
	SchedulerCores []int
	OtherCores     []int
	// Dir is where the runs write. It is theirs.
	Dir string
	// Stalled ends a run in which nothing happened for this long.
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

// Run measures a scheduler with the objects that a load has made.
func (s Setup) Run(ctx context.Context, kind scheduler.Kind, l load.Load, objects load.Objects) (report.Run, error) {
	dir := filepath.Join(s.Dir, "run")
	defer os.RemoveAll(dir)
	kind = kind.For(len(objects.Gangs) > 0, objects.NeedsTopology())
	o := one{Setup: s, kind: kind, objects: objects, dir: dir, impossible: l.Impossible, beside: l.Beside}
	r, err := o.run(ctx)
	if err != nil {
		return report.Run{}, fmt.Errorf("run %s with the load %s: %w", kind.Name, l.Name, err)
	}
	r.Load, r.Scheduler, r.Nodes, r.Gates = l.Name, kind.Name, len(objects.Nodes), kind.Gates
	return r, nil
}

// one is a run.
type one struct {
	Setup
	kind    scheduler.Kind
	objects load.Objects
	dir     string
	// impossible is a run of pods of which none can be bound.
	impossible bool
	// beside is how many other pods are created in a second.
	beside int

	cluster   *cluster.Cluster
	watch     *watchbinds.Watch
	scheduler *scheduler.Scheduler
	profiler  *scheduler.Profiler
}

func (o *one) run(ctx context.Context) (report.Run, error) {
	server, err := controlplane.Start(ctx, o.Program, o.dir, o.OtherCores, controlplane.Options{Lists: o.Lists, Gates: o.kind.Gates})
	if err != nil {
		return report.Run{}, err
	}
	defer server.Stop()
	if o.cluster, err = cluster.New(server.Config, server.Process, o.created(o.kind.Name)); err != nil {
		return report.Run{}, err
	}
	if err := o.cluster.Fill(ctx, o.objects.Nodes); err != nil {
		return report.Run{}, err
	}
	if !o.impossible && o.beside == 0 {
		if err := o.submit(ctx); err != nil {
			return report.Run{}, err
		}
	}
	limits := watchbinds.NodeLimits(cluster.Resource, o.objects.Nodes, cluster.NodeName)
	if o.watch, err = watchbinds.Start(ctx, o.cluster.Client, cluster.Namespace, limits, watchbinds.Kinds(o.impossible || o.beside > 0)); err != nil {
		return report.Run{}, err
	}
	defer o.watch.Stop()
	if o.scheduler, err = scheduler.Start(ctx, o.kind, server.Kubeconfig, o.dir, o.SchedulerCores); err != nil {
		return report.Run{}, err
	}
	defer o.scheduler.Stop()
	if o.beside > 0 {
		return o.withOthers(ctx)
	}
	if o.impossible {
		return o.untilRefused(ctx)
	}
	if o.Profile {
		o.profiler = o.scheduler.Profile(ctx)
	}
	return o.untilBound(ctx)
}

// submit creates the pods for the scheduler.
func (o *one) submit(ctx context.Context) error {
	form := cluster.Labels
	if o.kind.InTree {
		form = cluster.PodGroups
	}
	return o.cluster.Submit(ctx, o.objects, o.kind.ProfileName, form)
}

// untilBound measures until all pods are bound.
func (o *one) untilBound(ctx context.Context) (report.Run, error) {
	pods := len(o.objects.Pods)
	_, err := o.wait(ctx, "bound", func(p watchbinds.Progress) bool { return p.Bound >= pods })
	overlooked := 0
	if errors.Is(err, errStalled) {
		// Pods for which the scheduler finds no node are a result. That it does nothing is not.
		overlooked, err = o.explain(ctx, err)
	}
	if err != nil {
		return report.Run{}, err
	}
	// This comes before anything else is asked of the scheduler.
	used, err := o.scheduler.Used()
	if err != nil {
		return report.Run{}, err
	}
	r, err := o.measure(ctx, used)
	r.Overlooked = overlooked
	return r, err
}

// measure returns what was bound so far, and what the scheduler says of it. There may be no profiler.
func (o *one) measure(ctx context.Context, used process.Used) (report.Run, error) {
	counts, err := o.scheduler.Metrics(ctx)
	if err != nil {
		return report.Run{}, err
	}
	progress, err := o.watch.Progress()
	if err != nil {
		return report.Run{}, err
	}
	pods := len(o.objects.Pods)
	perPod := func(seconds float64) float64 { return seconds * 1e6 / float64(pods) }
	seconds := progress.Last.Sub(progress.First).Seconds()
	r := report.Run{
		Pods: pods, Unbound: pods - progress.Bound, GPUs: load.GPUs(o.objects.Pods), Seconds: seconds, PodsPerSecond: perSecond(progress.Bound, seconds),
		CPUSeconds: used.CPU.Seconds(), PeakBytes: used.PeakBytes,
		Reused: counts.Reused, PluginCalls: counts.PluginCalls, ScoringMicroseconds: perPod(counts.Scoring.Seconds()),
	}
	if len(o.objects.Gangs) > 0 {
		r.Gangs = judgeGangs(o.objects, o.watch.Binds(), seconds)
		if attempts := float64(counts.GangAttempts); attempts > 0 {
			r.Gangs.Attempts = counts.GangAttempts
			r.Gangs.DecisionMilliseconds = counts.GangDecision.Seconds() * 1e3 / attempts
			r.Gangs.CycleMilliseconds = counts.GangCycle.Seconds() * 1e3 / attempts
		}
	}
	if o.profiler != nil {
		profile, err := o.profiler.Stop(o.ProfileFile)
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

// perSecond is a speed; 0 where no time has passed, as between no binds or at one.
func perSecond(count int, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(count) / seconds
}

// wait waits until the progress is as wanted. It fails when the scheduler ends, when nothing happens for a while, and when a bind was
// wrong.
func (o *one) wait(ctx context.Context, what string, enough func(watchbinds.Progress) bool) (watchbinds.Progress, error) {
	line := time.NewTicker(sayEvery)
	defer line.Stop()
	stalled := time.NewTimer(o.Stalled)
	defer stalled.Stop()
	pods := len(o.objects.Pods)
	for {
		progress, err := o.watch.Progress()
		if err != nil || enough(progress) {
			return progress, err
		}
		select {
		case <-ctx.Done():
			return progress, context.Cause(ctx)
		case <-o.scheduler.Done():
			return progress, o.scheduler.Ended()
		case <-stalled.C:
			return progress, fmt.Errorf("%d of %d pods are bound and %d refused, and no other one was %s: %w %v; the scheduler's last output:\n%s",
				progress.Bound, pods, progress.Refused, what, errStalled, o.Stalled, o.scheduler.Tail())
		case <-o.watch.Changes():
			stalled.Reset(o.Stalled)
		case <-line.C:
			o.Say("%s: %d of %d pods bound%s", o.kind.Name, progress.Bound, pods, speed(progress))
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
func (o *one) explain(ctx context.Context, stalled error) (int, error) {
	list, err := o.cluster.Client.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return 0, errors.Join(stalled, fmt.Errorf("look for the pods that are not bound: %w", err))
	}
	why, err := judge(list.Items)
	if err != nil {
		return 0, errors.Join(stalled, err)
	}
	overlooked := 0
	for i := range list.Items {
		if o.watch.Fits(&list.Items[i]) {
			overlooked++
		}
	}
	o.Say("%s: %d pods got no node, and %d of them fit on a node; %s", o.kind.Name, len(list.Items), overlooked, why)
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
