package round

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/watchbinds"
)

// settle is how long a run goes on after all pods are refused, so that a scheduler which binds some of them later is seen.
const settle = 3 * time.Second

// untilRefused creates the pods when the scheduler is ready, and measures until none is left that is neither refused nor bound.
func (o *one) untilRefused(ctx context.Context) (report.Run, error) {
	if err := o.scheduler.WaitReady(ctx); err != nil {
		return report.Run{}, err
	}
	if err := o.submit(ctx); err != nil {
		return report.Run{}, err
	}
	created := time.Now()
	pods := len(o.objects.Pods)
	if _, err := o.wait(ctx, "refused", func(p watchbinds.Progress) bool { return p.Bound+p.Refused >= pods }); err != nil {
		return report.Run{}, err
	}
	// What the scheduler has used, and when, is that until here. What it has bound is that of the end.
	refused := o.watch.Refusals()
	used, err := o.scheduler.Used()
	if err != nil {
		return report.Run{}, err
	}
	select {
	case <-ctx.Done():
		return report.Run{}, context.Cause(ctx)
	case <-o.scheduler.Done():
		return report.Run{}, o.scheduler.Ended()
	case <-time.After(settle):
	}
	r, err := o.measure(ctx, used)
	r.Refusal = sumRefusals(refused, created)
	return r, err
}

// sumRefusals returns the times of refusals, from the creation of the last pod.
func sumRefusals(refused map[string]watchbinds.Refusal, created time.Time) *report.Refusal {
	r := &report.Refusal{Pods: len(refused)}
	messages := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		one := refused[name]
		seconds := max(0, one.At.Sub(created).Seconds())
		if len(messages) == 0 || seconds < r.FirstSeconds {
			r.FirstSeconds = seconds
		}
		r.Seconds = max(r.Seconds, seconds)
		messages[one.Message] = true
	}
	r.Messages = slices.Sorted(maps.Keys(messages))
	return r
}
