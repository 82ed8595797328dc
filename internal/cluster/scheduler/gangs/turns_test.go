package gangs

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTurnAt checks when a reservation can be held whose start is not known.
func TestTurnAt(t *testing.T) {
	tests := map[string]struct {
		// -1 is none
		last  time.Duration
		now   time.Duration
		begin time.Duration
		end   time.Duration
	}{
		"the first":           {-1, 7, 7, 12},
		"at its beginning":    {10, 10, 10, 15},
		"in its first half":   {10, 12, 10, 15},
		"in its second half":  {10, 13, 40, 45},
		"after its end":       {10, 15, 40, 45},
		"just before another": {10, 39, 40, 45},
		"another":             {10, 40, 40, 45},
		"much later":          {10, 100, 100, 105},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			last := time.Time{}
			if test.last >= 0 {
				last = start.Add(test.last * time.Minute)
			}
			begin, end := turnAt(last, start.Add(test.now*time.Minute), 5*time.Minute, 30*time.Minute)
			if begin.Sub(start) != test.begin*time.Minute || end.Sub(start) != test.end*time.Minute {
				t.Errorf("it lasts from %v to %v; want %d to %d minutes", begin.Sub(start), end.Sub(start), test.begin, test.end)
			}
		})
	}
}

// TestTurns: whenever reservations are asked for, they are held for at most 5 minutes of any 30.
func TestTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held := make([]bool, 240) // by minute
		var last time.Time
		for minute := range held {
			if !rapid.Bool().Draw(t, "asks") {
				continue
			}
			now := start.Add(time.Duration(minute) * time.Minute)
			begins, ends := turnAt(last, now, 5*time.Minute, 30*time.Minute)
			if begins.After(now) {
				continue
			}
			last = begins
			for i := minute; i < len(held) && start.Add(time.Duration(i)*time.Minute).Before(ends); i++ {
				held[i] = true
			}
		}
		for first := range len(held) - 30 {
			sum := 0
			for _, h := range held[first : first+30] {
				if h {
					sum++
				}
			}
			if sum > 5 {
				t.Fatalf("%d minutes from minute %d on", sum, first)
			}
		}
	})
}
