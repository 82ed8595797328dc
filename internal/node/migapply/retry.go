package migapply

import (
	"fmt"
	"reflect"
	"time"

	"github.com/berth-gpu/berth/internal/core/mig"
)

// try records the failures of a GPU.
type try struct {
	wanted mig.Wanted
	times  int
	next   time.Time
	// message is the status of a GPU that was to change; aside is added to that of a GPU that waits or is refused.
	message string
	aside   string
}

// unsure leaves a GPU unchanged that the last scan could not read completely: instances that it did not read may exist.
func (r *round) unsure(j *job) {
	for _, last := range *r.statuses.Load() {
		if last.UUID == j.want.UUID && last.State == Applied && reflect.DeepEqual(last.Plan.Wanted, j.want.Wanted) {
			j.state, j.message = Applied, last.Message
			return
		}
	}
	j.message = fmt.Sprintf("%s does not change to %s yet: its partitions could not be read completely. The next scan reads them again.",
		name(j.device), goal(j.want))
}

// failed records a failure and when the change is tried again.
func (p *Partition) failed(j *job) {
	t := p.tries[j.want.UUID]
	if t == nil {
		t = &try{wanted: j.want.Wanted}
		p.tries[j.want.UUID] = t
	}
	pause := min(firstRetry<<min(t.times, 10), lastRetry)
	t.times++
	t.next = p.deps.Clock.Now().Add(pause)
	t.message = fmt.Sprintf("%s could not be changed to %s: %v. It is retried at %s, or at once when something else is wanted.",
		name(j.device), goal(j.want), j.err, t.next.UTC().Format(time.RFC3339))
	t.aside = fmt.Sprintf("This failed and is retried at %s: %v.", t.next.UTC().Format(time.RFC3339), j.err)
	t.report(j)
	p.deps.Log.Error("MIG change failed", "gpu", j.want.UUID, "wanted", shape(j.want.Wanted), "source", j.want.Source,
		"error", j.err, "times", t.times, "next", pause)
}

// report adds a failure to the status of a GPU. A GPU that waits or is refused keeps this state, because only work that
// affects no holder has failed.
func (t *try) report(j *job) {
	switch {
	case j.ready:
		j.state, j.message = Failed, t.message
	case j.busy():
		j.message += " " + t.aside
	}
}
