package labels

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakePlace keeps labels and notes when it was written. While a publisher runs, its fields are touched under
// the lock only.
type fakePlace struct {
	sync.Mutex
	start   time.Time
	labels  Labels
	at      []time.Duration // attempts to write
	removed int
	broken  error
	deaf    error // the answer to reads
	delay   time.Duration
}

func (f *fakePlace) Place() string { return "fake" }

func (f *fakePlace) Read(context.Context) (Labels, error) {
	f.Lock()
	defer f.Unlock()
	return maps.Clone(f.labels), f.deaf
}

func (f *fakePlace) Write(ctx context.Context, labels Labels) error {
	f.Lock()
	defer f.Unlock()
	f.at = append(f.at, time.Since(f.start))
	if f.delay > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(f.delay):
		}
	}
	if f.broken != nil {
		return f.broken
	}
	f.labels = maps.Clone(labels)
	return nil
}

func (f *fakePlace) Remove(context.Context) error {
	f.removed++
	return nil
}

// publishing runs body beside a publisher, in a bubble with its own time.
func publishing(t *testing.T, place *fakePlace, body func(*Publisher)) {
	synctest.Test(t, func(t *testing.T) {
		place.start = time.Now()
		publisher := NewPublisher(Deps{Writer: place, NodeName: "node-0"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- publisher.Run(ctx) }()
		synctest.Wait()
		body(publisher)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// counting are labels of a node with so many cards.
func counting(n int) Labels { return Labels{"nvidia.com/gpu.count": strconv.Itoa(n)} }

func TestPublisherWritesOncePerSecond(t *testing.T) {
	place := &fakePlace{}
	publishing(t, place, func(p *Publisher) {
		for i := range 100 { // ten changes a second for ten seconds
			p.Publish(counting(i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		place.Lock()
		defer place.Unlock()
		for i := 1; i < len(place.at); i++ {
			if gap := place.at[i] - place.at[i-1]; gap < time.Second {
				t.Errorf("writes %d and %d are only %v apart", i-1, i, gap)
			}
		}
		if len(place.at) < 9 || len(place.at) > 12 || p.Writes() != int64(len(place.at)) {
			t.Errorf("%d writes, %d counted, in ten seconds of changes, want about ten", len(place.at), p.Writes())
		}
		same(t, "the last ones", place.labels, counting(99))
	})
}

// TestPublisherKeepsLabelsOverARestart: a new agent removes nothing before it knows better, writes nothing that
// is there already, and leaves the labels when it ends.
func TestPublisherKeepsLabelsOverARestart(t *testing.T) {
	place := &fakePlace{labels: counting(8)}
	for range 3 {
		publishing(t, place, func(p *Publisher) {
			time.Sleep(time.Hour) // the first scan takes its time
			for range 50 {
				p.Publish(counting(8))
				time.Sleep(time.Minute)
			}
		})
	}
	if len(place.at) != 0 || place.removed != 0 {
		t.Errorf("%d writes and %d removals of what was right", len(place.at), place.removed)
	}
	same(t, "after three lives", place.labels, counting(8))
}

func TestPublisherFollows(t *testing.T) {
	tests := map[string]struct {
		before  Labels
		harm    func(*fakePlace)
		publish []Labels
		want    Labels
		writes  int
	}{
		"first labels":                {publish: []Labels{counting(2)}, want: counting(2), writes: 1},
		"other labels than before":    {before: counting(3), publish: []Labels{counting(2)}, want: counting(2), writes: 1},
		"hardware that goes":          {before: counting(3), publish: []Labels{nil}, writes: 1},
		"no hardware":                 {publish: []Labels{nil}, writes: 0},
		"deleted by hand":             {harm: func(f *fakePlace) { f.labels = nil }, publish: []Labels{counting(2)}, want: counting(2), writes: 2},
		"changed by hand":             {harm: func(f *fakePlace) { f.labels = counting(9) }, publish: []Labels{counting(2)}, want: counting(2), writes: 2},
		"a place that is only silent": {harm: func(f *fakePlace) { f.deaf = errors.New("no") }, publish: []Labels{counting(2)}, want: counting(2), writes: 1},
		"there and back":              {publish: []Labels{counting(1), counting(2), counting(1)}, want: counting(1), writes: 1},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			place := &fakePlace{labels: test.before}
			publishing(t, place, func(p *Publisher) {
				for _, labels := range test.publish {
					p.Publish(labels)
				}
				time.Sleep(2 * time.Second)
				if test.harm != nil {
					place.Lock()
					test.harm(place)
					place.Unlock()
				}
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				place.Lock()
				defer place.Unlock()
				if len(place.at) != test.writes {
					t.Errorf("%d writes, want %d", len(place.at), test.writes)
				}
				same(t, "at the end", place.labels, test.want)
			})
		})
	}
}

func TestPublisherRetriesWithPauses(t *testing.T) {
	place := &fakePlace{broken: errors.New("refused; fix: allow it"), deaf: errors.New("refused too")}
	publishing(t, place, func(p *Publisher) {
		p.Publish(counting(1))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		place.Lock()
		if n := len(place.at); n < 10 || n > 20 {
			t.Errorf("%d attempts in ten minutes of refusals, want them to thin out to one a minute", n)
		}
		for i := 2; i < len(place.at); i++ {
			if a, b := place.at[i-1]-place.at[i-2], place.at[i]-place.at[i-1]; b < a {
				t.Errorf("pause %d is %v, shorter than the %v before it", i, b, a)
			}
		}
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), "fix: allow it") {
			t.Errorf("Err is %v, want the reason and the fix", err)
		}
		place.broken = nil
		place.Unlock()
		p.Publish(counting(2))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if p.Err() != nil || p.Writes() != 1 {
			t.Errorf("after the repair: Err %v, %d writes", p.Err(), p.Writes())
		}
		place.Lock()
		defer place.Unlock()
		same(t, "after the repair", place.labels, counting(2))
	})
}

func TestPublishNeverWaits(t *testing.T) {
	place := &fakePlace{delay: time.Hour}
	publishing(t, place, func(p *Publisher) {
		before := time.Now()
		for i := range 100 {
			p.Publish(counting(i))
		}
		if waited := time.Since(before); waited != 0 {
			t.Errorf("Publish waited %v for a place that does not answer", waited)
		}
	})
}
