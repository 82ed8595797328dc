package scheduler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

const (
	// berth begins the names of Berth's functions in a scheduler.
	berth = "github.com/berth-gpu/berth/"
	// plugin begins those of its plugin's methods.
	plugin = berth + "internal/cluster/scheduler/placement.(*Plugin)."
	// window is the length of one profile.
	window = 3 * time.Second
)

// CPUProfile says on what a scheduler has spent its CPU time, from the samples of Go's profiler (100 per second of CPU time), added up
// over threads. The collector's own work is in All only.
type CPUProfile struct {
	// All are all samples.
	All time.Duration
	// Berth are those in functions of Berth, or called by them.
	Berth time.Duration
	// Scoring are those in the methods of the plugin that make a pod's scores, or called by them: PreFilter, PreScore, Score and
	// NormalizeScore.
	Scoring time.Duration
}

// Profiler reads profiles of a scheduler, one after the other.
type Profiler struct {
	stop context.CancelFunc
	done chan struct{}
	read *profile.Profile
	err  error
}

// Profile begins to profile. The profiler needs about 1 % of the CPU time.
func (s *Scheduler) Profile(ctx context.Context) *Profiler {
	until, stop := context.WithCancel(ctx)
	p := &Profiler{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// The first request may come before the scheduler serves.
		p.err = s.Wait(ctx, "the scheduler's profiler", func(ctx context.Context) error { return p.add(ctx, s) })
		for p.err == nil && until.Err() == nil {
			p.err = p.add(ctx, s)
		}
	}()
	return p
}

// add adds the profile of a window.
func (p *Profiler) add(ctx context.Context, s *Scheduler) error {
	body, err := s.get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(window/time.Second)))
	if err != nil {
		return err
	}
	defer body.Close()
	next, err := profile.Parse(body)
	if err != nil {
		return err
	}
	if p.read == nil {
		p.read = next
		return nil
	}
	p.read, err = profile.Merge([]*profile.Profile{p.read, next})
	return err
}

// Stop waits for the end of the last window and returns the sum of all. It writes the profile of all windows to a file, if one is named.
func (p *Profiler) Stop(file string) (CPUProfile, error) {
	p.stop()
	<-p.done
	if p.err != nil {
		return CPUProfile{}, fmt.Errorf("profile the scheduler: %w", p.err)
	}
	if file != "" {
		if err := write(file, p.read); err != nil {
			return CPUProfile{}, fmt.Errorf("keep the profile: %w", err)
		}
	}
	return sumUp(p.read)
}

func write(path string, p *profile.Profile) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(p.Write(file), file.Close())
}

// sumUp attributes the samples of a CPU profile.
func sumUp(read *profile.Profile) (CPUProfile, error) {
	value := slices.IndexFunc(read.SampleType, func(t *profile.ValueType) bool { return t.Type == "cpu" && t.Unit == "nanoseconds" })
	if value < 0 {
		return CPUProfile{}, fmt.Errorf("profile has no CPU time, but %v", read.SampleType)
	}
	var sum CPUProfile
	for _, sample := range read.Sample {
		spent := time.Duration(sample.Value[value])
		ours, scoring := attribute(sample)
		sum.All += spent
		if ours {
			sum.Berth += spent
		}
		if scoring {
			sum.Scoring += spent
		}
	}
	return sum, nil
}

// attribute tells whether a sample was taken below a function of Berth, and below a method that scores.
func attribute(sample *profile.Sample) (ours, scoring bool) {
	for _, location := range sample.Location {
		for _, line := range location.Line {
			if line.Function == nil {
				continue
			}
			ours = ours || strings.HasPrefix(line.Function.Name, berth)
			if method, found := strings.CutPrefix(line.Function.Name, plugin); found {
				// A closure is METHOD.func1.
				method, _, _ = strings.Cut(method, ".")
				scoring = scoring || slices.Contains([]string{"PreFilter", "PreScore", "Score", "NormalizeScore"}, method)
			}
		}
	}
	return ours, scoring
}
