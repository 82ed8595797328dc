package replay

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// TypicalCover is the fraction of the pods that the typical shapes cover.
const TypicalCover = 0.95

// Trace is a cluster and its pods.
type Trace struct {
	Nodes []fleet.Node
	Pods  []fleet.Shape
}

// capacity returns the GPUs of all nodes, in thousandths.
func (t *Trace) capacity() int64 {
	sum := int64(0)
	for i := range t.Nodes {
		sum += int64(len(t.Nodes[i].GPUs)) * fleet.Whole
	}
	return sum
}

// Sample is the state when some of the capacity was requested. All values are in per cent.
type Sample struct {
	// Arrived is what all pods so far have requested of the capacity, whether they were placed or not.
	Arrived int
	// Allocated is what pods have of the capacity.
	Allocated float64
	// Fragmented is the fragmentation by the measure of the trace's mix, of the capacity; FragmentedIdle of what is idle.
	Fragmented     float64
	FragmentedIdle float64
}

// Run is the result of one policy and seed.
type Run struct {
	Policy string
	Seed   uint64
	// Samples are those of each per cent that arrived, from 0.
	Samples []Sample
	// Unplaced counts the pods that fitted nowhere.
	Unplaced map[fleet.Shape]int
	// Arrivals is the number of pods.
	arrivalsOf int
	Stats      fleet.Stats
	// Elapsed is how long the decisions took, without the making of arrivals; 0 without a clock.
	Elapsed time.Duration
}

// Options are those of all runs.
type Options struct {
	Policies []string
	Seeds    []uint64
	// Inflate is how much of the GPUs the pods request in all; 1.3 is 130 %.
	Inflate float64
	// Parallel is how many runs go on at the same time; less than 1 is 1.
	Parallel int
	// Now is the clock for Elapsed; nil is none.
	Now func() time.Time
	// Progress is called, by several goroutines, with a number of pods that were decided on; nil is not called.
	Progress func(pods int)
}

// progressEvery is the number of decisions after which a run reports and looks whether it has been cancelled.
const progressEvery = 512

// RunAll replays a trace for all policies and seeds. The runs are in the order of the policies, and then of the seeds.
func RunAll(ctx context.Context, t *Trace, o Options) ([]Run, error) {
	runs := make([]Run, len(o.Policies)*len(o.Seeds))
	mix := fleet.TypicalShapes(t.Pods, TypicalCover)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, o.Parallel))
	for i := range runs {
		group.Go(func() error {
			name, seed := o.Policies[i/len(o.Seeds)], o.Seeds[i%len(o.Seeds)]
			run, err := replay(ctx, t, mix, name, seed, &o)
			if err != nil {
				return fmt.Errorf("replay policy %s, seed %d: %w", name, seed, err)
			}
			runs[i] = run
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return runs, nil
}

// state is a run under way.
type state struct {
	fleet    *fleet.Fleet
	decider  *fleet.Decider
	measure  *fleet.Measure
	choose   func(fleet.Shape) (fleet.Op, bool)
	placed   func(fleet.Op)
	loss     []int64 // of each node, times the measure's unit
	lossSum  int64
	capacity int64
	arrived  int64
	run      Run
}

func newState(t *Trace, mix fleet.Mix, name string, seed uint64) (*state, error) {
	f, err := fleet.New(t.Nodes, seed)
	if err != nil {
		return nil, err
	}
	measure := fleet.NewMeasure(mix)
	policy, err := NewPolicy(name, measure, seed)
	if err != nil {
		return nil, err
	}
	s := &state{
		fleet: f, decider: fleet.NewDecider(f, policy), measure: measure, loss: make([]int64, f.Len()), placed: func(fleet.Op) {},
		capacity: t.capacity(), run: Run{Policy: policy.Name(), Seed: seed, Unplaced: map[fleet.Shape]int{}},
	}
	s.choose = s.decider.Best
	if own, ok := policy.(*random); ok {
		s.choose = func(shape fleet.Shape) (fleet.Op, bool) { return own.choose(s.decider, shape) }
	}
	if own, ok := s.decider.Scorer().(*clusteringScorer); ok {
		s.placed = own.placed
	}
	for i := range s.loss {
		s.loss[i] = measure.Fragmentation(f.Node(i))
		s.lossSum += s.loss[i]
	}
	return s, nil
}

func replay(ctx context.Context, t *Trace, mix fleet.Mix, name string, seed uint64, o *Options) (Run, error) {
	s, err := newState(t, mix, name, seed)
	if err != nil {
		return Run{}, err
	}
	arrivals := arrivalsOf(t.Pods, s.capacity, o.Inflate, seed)
	s.run.arrivalsOf = len(arrivals)
	now := o.Now
	if now == nil {
		now = func() time.Time { return time.Time{} }
	}
	begin := now()
	for i, pod := range arrivals {
		if err := s.arrive(pod); err != nil {
			return Run{}, err
		}
		if i%progressEvery == progressEvery-1 || i == len(arrivals)-1 {
			if o.Progress != nil {
				o.Progress(i%progressEvery + 1)
			}
			if err := ctx.Err(); err != nil {
				return Run{}, err
			}
		}
	}
	s.run.Samples = append(s.run.Samples, s.sample(len(s.run.Samples)))
	s.run.Elapsed, s.run.Stats = now().Sub(begin), s.decider.Stats()
	return s.run, nil
}

// arrive places a pod or drops it.
func (s *state) arrive(pod fleet.Shape) error {
	// The sample of a per cent is the state after the last pod with which no more than that has arrived.
	for s.arrived += pod.Demand(); s.arrived*100 > int64(len(s.run.Samples))*s.capacity; {
		s.run.Samples = append(s.run.Samples, s.sample(len(s.run.Samples)))
	}
	op, ok := s.choose(pod)
	if !ok {
		s.run.Unplaced[pod]++
		return nil
	}
	if err := s.fleet.Place(op); err != nil {
		return err
	}
	s.placed(op)
	loss := s.measure.Fragmentation(s.fleet.Node(op.Node))
	s.lossSum += loss - s.loss[op.Node]
	s.loss[op.Node] = loss
	return nil
}

func (s *state) sample(arrived int) Sample {
	idle, capacity := float64(s.fleet.Free().GPU), float64(s.capacity)
	lost := float64(s.lossSum) / float64(s.measure.Unit())
	result := Sample{Arrived: arrived, Allocated: 100 * (capacity - idle) / capacity, Fragmented: 100 * lost / capacity}
	if idle > 0 {
		result.FragmentedIdle = 100 * lost / idle
	}
	return result
}
