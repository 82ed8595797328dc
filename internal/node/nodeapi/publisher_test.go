package nodeapi_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// value is what the tests publish.
type value map[string]string

// counting is a value for each number.
func counting(n int) value { return value{"count": strconv.Itoa(n)} }

// place stores a value and records when it was written. While a publisher runs, its fields are used under the lock
// only.
type place struct {
	sync.Mutex
	start  time.Time
	value  value
	gone   bool            // reads find nothing
	at     []time.Duration // attempts to write
	reads  int
	broken error // the response to writes
	deaf   error // the response to reads
	delay  time.Duration
	last   error // the last report
}

func (p *place) read(context.Context) (value, bool, error) {
	p.Lock()
	defer p.Unlock()
	p.reads++
	return maps.Clone(p.value), !p.gone, p.deaf
}

func (p *place) write(ctx context.Context, v value) error {
	p.Lock()
	p.at = append(p.at, time.Since(p.start))
	delay := p.delay
	p.Unlock()
	if delay > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
	}
	p.Lock()
	defer p.Unlock()
	if p.broken != nil {
		return p.broken
	}
	p.value, p.gone = maps.Clone(v), false
	return nil
}

func (p *place) report(err error) {
	p.Lock()
	defer p.Unlock()
	p.last = err
}

// publishing runs body beside a publisher, in a bubble with its own time.
func publishing(t *testing.T, p *place, body func(*testing.T, *nodeapi.Publisher[value])) {
	synctest.Test(t, func(t *testing.T) {
		p.start = time.Now()
		publisher := nodeapi.NewPublisher(nodeapi.PublisherDeps[value]{
			Read: p.read, Write: p.write, Equal: maps.Equal[value, value], Report: p.report, Retry: retry(),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- publisher.Run(ctx) }()
		synctest.Wait()
		body(t, publisher)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestPublisherWritesOncePerSecond(t *testing.T) {
	p := &place{}
	publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
		for i := range 100 { // ten changes a second for ten seconds
			publisher.Publish(counting(i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		p.Lock()
		defer p.Unlock()
		for i := 1; i < len(p.at); i++ {
			if gap := p.at[i] - p.at[i-1]; gap < time.Second {
				t.Errorf("writes %d and %d are only %v apart", i-1, i, gap)
			}
		}
		if len(p.at) < 9 || len(p.at) > 12 {
			t.Errorf("%d writes in ten seconds of changes, want about ten", len(p.at))
		}
		if diff := cmp.Diff(counting(99), p.value); diff != "" {
			t.Errorf("the last value (-want +got):\n%s", diff)
		}
	})
}

// TestPublisherKeepsTheValueOverARestart checks that a new agent changes nothing before it has a value, writes nothing
// that already exists, and leaves the value when it ends.
func TestPublisherKeepsTheValueOverARestart(t *testing.T) {
	p := &place{value: counting(8)}
	for range 3 {
		publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
			time.Sleep(time.Hour) // the first scan takes some time
			for range 50 {
				publisher.Publish(counting(8))
				time.Sleep(time.Minute)
			}
		})
	}
	if len(p.at) != 0 {
		t.Errorf("%d writes of what was there", len(p.at))
	}
	if diff := cmp.Diff(counting(8), p.value); diff != "" {
		t.Errorf("after three runs (-want +got):\n%s", diff)
	}
}

// TestPublisherReplaces checks that a write which the agent before had under way, and which comes after the first one of this agent, does
// not stay for long.
func TestPublisherReplaces(t *testing.T) {
	tests := map[string]struct{ late, stays time.Duration }{
		"at once":        {time.Second, 4 * time.Second},
		"after a while":  {20 * time.Second, 10 * time.Second},
		"edited by hand": {time.Minute, 9*time.Minute + 30*time.Second},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			p := &place{value: counting(1)}
			publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
				publisher.Publish(counting(2))
				time.Sleep(test.late)
				p.Lock()
				p.value = counting(1)
				p.Unlock()
				time.Sleep(test.stays + time.Second)
				synctest.Wait()
				p.Lock()
				defer p.Unlock()
				if want := []time.Duration{0, test.late + test.stays}; !slices.Equal(p.at, want) || p.value["count"] != "2" {
					t.Errorf("written at %v, and it is %v; want at %v", p.at, p.value, want)
				}
			})
		})
	}
}

func TestPublisherFollows(t *testing.T) {
	one := []value{counting(2)}
	tests := map[string]struct {
		before  value
		gone    bool
		harm    func(*place)
		publish []value
		want    value
		writes  int
	}{
		"first value":                 {publish: one, want: counting(2), writes: 1},
		"no object":                   {gone: true, publish: []value{{}}, want: value{}, writes: 1},
		"another value than before":   {before: counting(3), publish: one, want: counting(2), writes: 1},
		"hardware that goes":          {before: counting(3), publish: []value{{}}, want: value{}, writes: 1},
		"no hardware":                 {publish: []value{{}}, want: nil, writes: 0},
		"nothing is wanted":           {before: counting(3), want: counting(3), writes: 0},
		"deleted by hand":             {harm: func(p *place) { p.value = nil }, publish: one, want: counting(2), writes: 2},
		"object deleted":              {harm: func(p *place) { p.gone = true }, publish: one, want: counting(2), writes: 2},
		"changed by hand":             {harm: func(p *place) { p.value = counting(9) }, publish: one, want: counting(2), writes: 2},
		"a place that is only silent": {harm: func(p *place) { p.deaf = errors.New("no") }, publish: one, want: counting(2), writes: 1},
		"there and back":              {publish: []value{counting(1), counting(2), counting(1)}, want: counting(1), writes: 1},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			p := &place{value: test.before, gone: test.gone}
			publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
				for _, v := range test.publish {
					publisher.Publish(v)
				}
				time.Sleep(time.Minute)
				if test.harm != nil {
					p.Lock()
					test.harm(p)
					p.Unlock()
				}
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				p.Lock()
				defer p.Unlock()
				if len(p.at) != test.writes || p.reads != 4 {
					t.Errorf("%d writes and %d reads, want %d and 4", len(p.at), p.reads, test.writes)
				}
				if diff := cmp.Diff(test.want, p.value); diff != "" {
					t.Errorf("at the end (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestPublisherRetriesWithPauses(t *testing.T) {
	p := &place{broken: errors.New("refused; fix: allow it"), deaf: errors.New("refused too")}
	publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
		publisher.Publish(counting(1))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		p.Lock()
		if n := len(p.at); n < 10 || n > 20 {
			t.Errorf("%d attempts in ten minutes of refusals, want them to thin out to one a minute", n)
		}
		for i := 2; i < len(p.at); i++ {
			if a, b := p.at[i-1]-p.at[i-2], p.at[i]-p.at[i-1]; b < a {
				t.Errorf("pause %d is %v, shorter than the %v before it", i, b, a)
			}
		}
		if p.last == nil || !strings.Contains(p.last.Error(), "fix: allow it") {
			t.Errorf("reported %v, want the reason and the fix", p.last)
		}
		p.broken = nil
		p.Unlock()
		publisher.Publish(counting(2))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		p.Lock()
		defer p.Unlock()
		if p.last != nil {
			t.Errorf("after the repair: reported %v", p.last)
		}
		if diff := cmp.Diff(counting(2), p.value); diff != "" {
			t.Errorf("after the repair (-want +got):\n%s", diff)
		}
	})
}

// TestPublisherDoubtsAFailedWrite: a failed write may have taken effect, so the value before it is written again.
func TestPublisherDoubtsAFailedWrite(t *testing.T) {
	p := &place{}
	publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
		publisher.Publish(counting(1))
		time.Sleep(5 * time.Second)
		p.Lock()
		p.broken = errors.New("no answer")
		p.Unlock()
		publisher.Publish(counting(2))
		synctest.Wait()
		publisher.Publish(counting(1))
		p.Lock()
		p.broken, p.value = nil, counting(2)
		p.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		p.Lock()
		defer p.Unlock()
		if len(p.at) != 3 || p.value["count"] != "1" {
			t.Errorf("%d writes, value %v; want 3 and the value published last", len(p.at), p.value)
		}
	})
}

func TestPublishNeverWaits(t *testing.T) {
	p := &place{delay: time.Hour}
	publishing(t, p, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
		before := time.Now()
		for i := range 100 {
			publisher.Publish(counting(i))
		}
		if waited := time.Since(before); waited != 0 {
			t.Errorf("Publish waited %v for a place that does not answer", waited)
		}
	})
}

func TestPublishAndWait(t *testing.T) {
	refused := errors.New("refused")
	tests := map[string]struct {
		place *place
		limit time.Duration
		want  error
		took  time.Duration
	}{
		"is there already": {&place{value: counting(1)}, time.Minute, nil, 0},
		"written":          {&place{}, time.Minute, nil, 0},
		"slow":             {&place{delay: 3 * time.Second}, time.Minute, nil, 3 * time.Second},
		"refused":          {&place{broken: refused}, time.Minute, refused, 0},
		"no answer":        {&place{delay: time.Hour}, 2 * time.Second, context.DeadlineExceeded, 2 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			publishing(t, tc.place, func(t *testing.T, publisher *nodeapi.Publisher[value]) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.limit)
				defer cancel()
				before := time.Now()
				if err := publisher.PublishAndWait(ctx, counting(1)); !errors.Is(err, tc.want) {
					t.Errorf("error %v, want %v", err, tc.want)
				}
				if took := time.Since(before); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
			})
		})
	}
}

// TestRetryDependsOnTheNode checks that the agents of a cluster do not retry at the same moments, and that none pauses
// longer than a minute.
func TestRetryDependsOnTheNode(t *testing.T) {
	pauses := map[time.Duration]bool{}
	for i := range 100 {
		r := nodeapi.Retry{NodeName: "node-" + strconv.Itoa(i)}
		if p := r.Pause(1); p < time.Second || p > 1250*time.Millisecond {
			t.Errorf("the first pause is %v", p)
		}
		if p := r.Pause(1000); p != time.Minute {
			t.Errorf("the last pause is %v", p)
		}
		pauses[r.Pause(3)] = true
	}
	if len(pauses) < 50 {
		t.Errorf("100 nodes have only %d different pauses", len(pauses))
	}
}

// TestSpread checks that what one event makes 1,000 agents do is spread over the whole limit: in no tenth of it more than two tenths of
// them.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 5 * time.Second
		var mu sync.Mutex
		tenths := map[time.Duration]int{}
		var group sync.WaitGroup
		for i := range 1000 {
			group.Go(func() {
				began := time.Now()
				if err := (nodeapi.Retry{Clock: clock.RealClock{}, NodeName: "node-" + strconv.Itoa(i)}).Spread(t.Context(), limit); err != nil {
					t.Error(err)
				}
				mu.Lock()
				tenths[time.Since(began)*10/limit]++
				mu.Unlock()
			})
		}
		group.Wait()
		if len(tenths) != 10 || slices.Max(slices.Collect(maps.Values(tenths))) > 200 {
			t.Errorf("agents in each tenth of the limit: %v", tenths)
		}
	})
}
