package round

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/cluster"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

const (
	// quiet is how long other pods come before the gangs, and least how long they come from then on.
	quiet, least = 3 * time.Second, 20 * time.Second
	// drain is how long the last of them are waited for.
	drain = time.Minute
)

// withOthers creates other pods at their rate, then the gangs beside them, and measures how long the others wait for their nodes from the
// time at which the gangs are created until these are bound, or refused.
func (o *one) withOthers(ctx context.Context) (report.Run, error) {
	if err := o.scheduler.WaitReady(ctx); err != nil {
		return report.Run{}, err
	}
	// 1. Create other pods, and after a while the gangs, until these are settled.
	created, submitted, settled, err := o.createBeside(ctx)
	if err != nil {
		return report.Run{}, err
	}
	// 2. Wait for the last of the others.
	if _, err := o.wait(ctx, "bound", func(watchbinds.Progress) bool {
		return o.waiting(created) == 0 || time.Since(settled) > drain
	}); err != nil {
		return report.Run{}, err
	}
	// 3. Measure.
	used, err := o.scheduler.Used()
	if err != nil {
		return report.Run{}, err
	}
	r, err := o.measure(ctx, used)
	if err != nil {
		return report.Run{}, err
	}
	o.sum(&r, created, submitted)
	return r, nil
}

// createBeside creates the other pods and the gangs. It returns the others that were created from when the gangs were submitted on, with
// their times, that time, and when the gangs were bound, or refused.
func (o *one) createBeside(ctx context.Context) (created map[string]time.Time, submitted, settled time.Time, err error) {
	created, done := map[string]time.Time{}, make(chan error, 1)
	tick := time.NewTicker(time.Second / time.Duration(o.beside))
	defer tick.Stop()
	began := time.Now()
	var complete atomic.Int64 // when all pods of gangs were created
	for number := 0; settled.IsZero() || time.Since(submitted) < least; number++ {
		select {
		case <-ctx.Done():
			return nil, submitted, settled, context.Cause(ctx)
		case <-o.scheduler.Done():
			return nil, submitted, settled, o.scheduler.Ended()
		case <-tick.C:
		}
		at := time.Now()
		name, err := o.cluster.AddBeside(ctx, number, o.kind.ProfileName)
		if err != nil {
			return nil, submitted, settled, err
		}
		switch {
		case submitted.IsZero() && time.Since(began) >= quiet:
			submitted = time.Now()
			go func() {
				err := o.submit(ctx)
				complete.Store(time.Now().UnixNano())
				done <- err
			}()
		case !submitted.IsZero():
			created[name] = at
		}
		if !submitted.IsZero() && settled.IsZero() && (o.gangPods() >= len(o.objects.Pods) || complete.Load() > 0 && time.Since(time.Unix(0, complete.Load())) > o.Stalled) {
			settled = time.Now()
		}
	}
	return created, submitted, settled, <-done
}

// gangPods counts the pods of gangs that are bound, or refused where none can be bound.
func (o *one) gangPods() int {
	count := 0
	if o.impossible {
		for name := range o.watch.Refusals() {
			count += isGang(name)
		}
		return count
	}
	for name := range o.watch.Binds() {
		count += isGang(name)
	}
	return count
}

// isGang is 1 for a pod of a gang.
func isGang(name string) int {
	if strings.HasPrefix(name, cluster.PodPrefix) {
		return 1
	}
	return 0
}

// waiting counts the pods of a list that are not bound.
func (o *one) waiting(created map[string]time.Time) int {
	binds, count := o.watch.Binds(), 0
	for name := range created {
		if _, bound := binds[name]; !bound {
			count++
		}
	}
	return count
}

// sum counts the pods of gangs and the others apart.
func (o *one) sum(r *report.Run, created map[string]time.Time, submitted time.Time) {
	binds := o.watch.Binds()
	r.Beside = waits(created, binds)
	bound, last := 0, submitted
	for name, b := range binds {
		if isGang(name) == 1 {
			bound++
			last = slices.MaxFunc([]time.Time{last, b.At}, time.Time.Compare)
		}
	}
	r.Seconds = last.Sub(submitted).Seconds()
	r.Unbound, r.PodsPerSecond = r.Pods-bound, perSecond(bound, r.Seconds)
	if o.impossible {
		refused := maps.Clone(o.watch.Refusals())
		maps.DeleteFunc(refused, func(name string, _ watchbinds.Refusal) bool { return isGang(name) == 0 })
		r.Refusal = sumRefusals(refused, submitted)
	}
}

// waits returns how long pods waited from their creation to their bind.
func waits(created map[string]time.Time, binds map[string]watchbinds.Bind) *report.Beside {
	b := &report.Beside{Pods: len(created)}
	var seconds []float64
	for name, at := range created {
		if bind, bound := binds[name]; bound {
			seconds = append(seconds, max(0, bind.At.Sub(at).Seconds()))
		}
	}
	b.Unbound = b.Pods - len(seconds)
	if len(seconds) == 0 {
		return b
	}
	slices.SortFunc(seconds, cmp.Compare)
	// A percentile is the least time within which so many of the pods have their node.
	at := func(percent int) float64 { return seconds[(len(seconds)*percent+99)/100-1] }
	b.MedianSeconds, b.Seconds99, b.MostSeconds = at(50), at(99), at(100)
	return b
}
