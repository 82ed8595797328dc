package migapply

import (
	"fmt"
	"reflect"
	"time"

	"github.com/berth-gpu/berth/internal/core/mig"
)

// try is what is remembered of a card that failed.
type try struct {
	wanted mig.Wanted
	times  int
	next   time.Time
	// message says it of a GPU that was to change; aside of one that waits or is refused.
	message, aside string
}

// unsure leaves a GPU as it is of which the last scan could not read all: what it did not read is not absent.
func (r *round) unsure(j *job) {
	for _, last := range *r.statuses.Load() {
		if last.UUID == j.want.UUID && last.State == Applied && reflect.DeepEqual(last.Plan.Wanted, j.want.Wanted) {
			j.state, j.message = Applied, last.Message
			return
		}
	}
	j.message = fmt.Sprintf("%s does not change to %s yet: how it is partitioned could not be read completely. It is read again with the next scan.", name(j.card), goal(j.want))
}

// failed notes a failure and when it is tried again.
func (r *round) failed(j *job) {
	t := r.tries[j.want.UUID]
	if t == nil {
		t = &try{wanted: j.want.Wanted}
		r.tries[j.want.UUID] = t
	}
	pause := min(firstRetry<<min(t.times, 10), lastRetry)
	t.times++
	t.next = r.deps.Clock.Now().Add(pause)
	t.message = fmt.Sprintf("%s could not be changed to %s: %v. It is tried again at %s, or at once when something else is wanted.",
		name(j.card), goal(j.want), j.err, t.next.UTC().Format(time.RFC3339))
	t.aside = fmt.Sprintf("Meanwhile this failed, and is tried again at %s: %v.", t.next.UTC().Format(time.RFC3339), j.err)
	t.report(j)
	r.deps.Log.Error("MIG change failed", "gpu", j.want.UUID, "wanted", shape(j.want.Wanted), "source", j.want.Source, "error", j.err, "times", t.times, "next", pause)
}

// report adds a failure to what is said of the GPU. One that waits, or that cannot be as wanted, stays so:
// what failed there is only what disturbs nobody.
func (t *try) report(j *job) {
	switch {
	case j.ready:
		j.state, j.message = Failed, t.message
	case j.busy():
		j.message += " " + t.aside
	}
}
