package firstfit

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// twin tries all devices for all requests in order, and looks at the whole solution after each.
type twin struct {
	pools  []Pool
	node   *Node
	claims []Claim
	held   []bool
	tries  int
}

// mostTries is how many solutions the twin looks at: a few random cases have millions.
const mostTries = 100_000

// solve returns the first solution that begins with picks, or Unknown after too many tries.
func (w *twin) solve(picks []Pick) ([]Pick, Outcome) {
	if w.tries++; w.tries > mostTries {
		return nil, Unknown
	}
	if !w.valid(picks) {
		return nil, DoesNotFit
	}
	claim, request, from := 0, 0, 0
	if n := len(picks); n > 0 {
		last := picks[n-1]
		claim, request, from = last.Claim, last.Request, last.Device+1
	}
	for claim < len(w.claims) {
		if request == len(w.claims[claim].Requests) {
			claim, request, from = claim+1, 0, 0
			continue
		}
		served := 0
		for _, p := range picks {
			if p.Claim == claim && p.Request == request {
				served++
			}
		}
		if served < w.claims[claim].Requests[request].Count {
			break
		}
		request, from = request+1, 0
	}
	if claim == len(w.claims) {
		return picks, Fits
	}
	for d := from; d < w.node.Len(); d++ {
		if w.held[d] || slices.ContainsFunc(picks, func(p Pick) bool { return p.Device == d }) || w.node.devices[d].elsewhere {
			continue
		}
		switch w.claims[claim].Requests[request].Verdicts[d] {
		case Fails:
			return nil, Aborted
		case Yes:
			if solution, outcome := w.solve(append(slices.Clone(picks), Pick{claim, request, d})); outcome != DoesNotFit {
				return solution, outcome
			}
		}
	}
	return nil, DoesNotFit
}

// valid tells whether picks keep to the counters and constraints.
func (w *twin) valid(picks []Pick) bool {
	for p := range w.pools {
		if !w.countersHold(&w.pools[p], picks) {
			return false
		}
	}
	for c := range w.claims {
		for _, constraint := range w.claims[c].Constraints {
			var values []Value
			for _, p := range picks {
				name := w.claims[p.Claim].Requests[p.Request].Name
				if p.Claim != c || len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, name) {
					continue
				}
				value, ok := w.node.devices[p.Device].Attributes[constraint.Attribute]
				if !ok || len(values) > 0 && (value != values[0] || value.Kind == Other) {
					return false
				}
				values = append(values, value)
			}
		}
	}
	return true
}

// countersHold tells whether a pool has what the devices that are held and picked take, if a picked one takes any.
func (w *twin) countersHold(p *Pool, picks []Pick) bool {
	taken, counted := map[string]int64{}, false
	for i, d := range w.node.devices {
		picked := slices.ContainsFunc(picks, func(p Pick) bool { return p.Device == i })
		if d.id.Pool != p.Name || !w.held[i] && !picked {
			continue
		}
		counted = counted || picked && d.Counted
		for _, c := range d.Consumes {
			taken[c.Set+"/"+c.Counter] += c.Amount
		}
	}
	for _, set := range p.Sets {
		for name, total := range set.Counters {
			if counted && taken[set.Name+"/"+name] > total {
				return false
			}
		}
	}
	return true
}

// drawPool returns a pool of up to three GPUs, each whole or with parts that share its counters.
func drawPool(t *rapid.T, name string) Pool {
	p := Pool{Driver: "gpu.berth.dev", Name: name}
	values := []Value{{Kind: String, Text: "a"}, {Kind: String, Text: "b"}, {Kind: Int, Number: 1}, {}}
	for g := range rapid.IntRange(0, 3).Draw(t, "GPUs") {
		s := Slice{Elsewhere: rapid.IntRange(0, 9).Draw(t, "elsewhere") == 0}
		gpu := fmt.Sprintf("%s-%d", name, g)
		parts := rapid.IntRange(0, 3).Draw(t, "parts")
		set := CounterSet{Name: gpu, Counters: map[string]int64{}}
		whole := Device{Name: gpu, GPU: gpu, Whole: true, Counted: parts > 0}
		for i := range parts {
			counter := fmt.Sprint("slice-", i)
			set.Counters[counter] = 1
			whole.Consumes = append(whole.Consumes, Amount{gpu, counter, 1})
		}
		s.Devices = append(s.Devices, whole)
		for i := range parts {
			end := rapid.IntRange(i, parts).Draw(t, "end")
			s.Devices = append(s.Devices, Device{Name: fmt.Sprint(gpu, "-", i), GPU: gpu, Counted: true, Consumes: whole.Consumes[i:end]})
		}
		for i := range s.Devices {
			s.Devices[i].Attributes = map[string]Value{}
			for _, attribute := range []string{"x", "y"} {
				if at := rapid.IntRange(0, len(values)+1).Draw(t, "value"); at < len(values) {
					s.Devices[i].Attributes[attribute] = values[at]
				}
			}
		}
		if parts > 0 {
			p.Sets = append(p.Sets, set)
		}
		p.Slices = append(p.Slices, s)
	}
	return p
}

func drawClaim(t *rapid.T, devices int) Claim {
	var claim Claim
	verdicts := []Verdict{Yes, Yes, Yes, Yes, Yes, Yes, No, Tainted}
	if rapid.IntRange(0, 7).Draw(t, "fails") == 0 {
		verdicts = append(verdicts, Fails)
	}
	for r := range rapid.IntRange(0, 2).Draw(t, "requests") {
		one := Request{Name: fmt.Sprint("r", r), Count: rapid.IntRange(1, 3).Draw(t, "count")}
		for range devices {
			one.Verdicts = append(one.Verdicts, rapid.SampledFrom(verdicts).Draw(t, "verdict"))
		}
		claim.Requests = append(claim.Requests, one)
	}
	for range rapid.IntRange(0, 2).Draw(t, "constraints") {
		claim.Constraints = append(claim.Constraints, Constraint{
			Attribute: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "attribute"),
			Requests:  rapid.SampledFrom([][]string{nil, {"r0"}, {"r1"}, {"r0", "r1"}, {"none"}}).Draw(t, "on"),
		})
	}
	return claim
}

// TestTwin compares predictions with a search that leaves nothing out.
func TestTwin(t *testing.T) {
	outcomes := map[Outcome]int{}
	rapid.Check(t, func(t *rapid.T) {
		pools := []Pool{drawPool(t, "p"), drawPool(t, "q")}
		w := &twin{pools: pools, node: NewNode(pools)}
		w.held = w.node.Held(func(ID) bool { return rapid.IntRange(0, 5).Draw(t, "held") == 0 })
		for range rapid.IntRange(1, 2).Draw(t, "claims") {
			w.claims = append(w.claims, drawClaim(t, w.node.Len()))
		}
		picks, outcome := w.solve(nil)
		if outcome == Unknown {
			t.Skip("too large for the twin")
		}
		// A prediction leaves out some of what the twin tries, but counts devices that it does not add.
		got, err := w.node.Predict(w.claims, w.held, mostTries*w.node.Len())
		if err != nil {
			t.Fatal(err)
		}
		if got.Outcome != outcome || !slices.Equal(got.Picks, picks) {
			t.Fatalf("outcome %d with %v, want %d with %v", got.Outcome, got.Picks, outcome, picks)
		}
		for _, steps := range []int{0, got.Steps / 2, got.Steps - 1} {
			few, err := w.node.Predict(w.claims, w.held, max(0, steps))
			if err != nil || few.Outcome != Unknown && !cmp.Equal(few, got) || few.Steps > max(0, steps) {
				t.Fatalf("with %d steps of %d: %+v, %v", steps, got.Steps, few, err)
			}
		}
		outcomes[outcome]++
	})
	if outcomes[Fits] == 0 || outcomes[DoesNotFit] == 0 || outcomes[Aborted] == 0 {
		t.Errorf("outcomes %v: the comparison proves little", outcomes)
	}
}

// all returns a verdict for each device.
func all(n int, verdict Verdict) []Verdict { return slices.Repeat([]Verdict{verdict}, n) }

// twoIslands has the GPUs 0 to 7, of which 0 to 3 and 4 to 7 have one value of the attribute island.
func twoIslands() *Node {
	var s Slice
	for i := range 8 {
		name := fmt.Sprint("gpu-", i)
		s.Devices = append(s.Devices, Device{
			Name: name, GPU: name, Whole: true, Attributes: map[string]Value{"island": {Kind: Int, Number: int64(i / 4)}},
		})
	}
	return NewNode([]Pool{{Driver: "d", Name: "p", Slices: []Slice{s}}})
}

func TestPredict(t *testing.T) {
	n := twoIslands()
	held := func(list ...int) []bool {
		made := make([]bool, n.Len())
		for _, i := range list {
			made[i] = true
		}
		return made
	}
	island := []Constraint{{Attribute: "island"}}
	tests := map[string]struct {
		claim Claim
		held  []bool
		want  Outcome
		picks []int
		count Counts
		err   error
	}{
		"first free ones": {
			claim: Claim{Requests: []Request{{Count: 2, Verdicts: all(8, Yes)}}}, held: held(0, 2), want: Fits, picks: []int{1, 3},
			count: Counts{Matching: 8, Held: 2, Free: 6},
		},
		"of one island": {
			claim: Claim{Requests: []Request{{Count: 4, Verdicts: all(8, Yes)}}, Constraints: island}, held: held(0), want: Fits,
			picks: []int{4, 5, 6, 7}, count: Counts{Matching: 8, Held: 1, Free: 7},
		},
		"no island": {
			claim: Claim{Requests: []Request{{Count: 4, Verdicts: all(8, Yes)}}, Constraints: island}, held: held(0, 7),
			want: DoesNotFit, count: Counts{Matching: 8, Held: 2, Free: 6},
		},
		"tainted": {
			claim: Claim{Requests: []Request{{Count: 1, Verdicts: all(8, Tainted)}}}, held: held(0), want: DoesNotFit,
			count: Counts{Matching: 8, Tainted: 8},
		},
		"the first one aborts": {
			claim: Claim{Requests: []Request{{Count: 1, Verdicts: append([]Verdict{Fails}, all(7, Yes)...)}}}, held: held(),
			want: Aborted, count: Counts{Matching: 7, Free: 7},
		},
		"the first one is held": {
			claim: Claim{Requests: []Request{{Count: 1, Verdicts: append([]Verdict{Fails}, all(7, Yes)...)}}}, held: held(0),
			want: Fits, picks: []int{1}, count: Counts{Matching: 7, Free: 7},
		},
		"no device":      {claim: Claim{Requests: []Request{{Verdicts: all(8, Yes)}}}, held: held(), err: ErrNotSimple},
		"too many":       {claim: Claim{Requests: []Request{{Count: 33, Verdicts: all(8, Yes)}}}, held: held(), err: ErrNotSimple},
		"nothing wanted": {held: held(), want: Fits},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := n.Predict([]Claim{test.claim}, test.held, DefaultSteps)
			if !errors.Is(err, test.err) {
				t.Fatalf("error %v, want %v", err, test.err)
			}
			if err != nil {
				return
			}
			var picks []int
			for _, p := range got.Picks {
				picks = append(picks, p.Device)
			}
			if got.Outcome != test.want || !slices.Equal(picks, test.picks) {
				t.Errorf("outcome %d with %v, want %d with %v", got.Outcome, picks, test.want, test.picks)
			}
			if len(got.Counts) > 0 && got.Counts[0] != test.count {
				t.Errorf("counts %+v, want %+v", got.Counts[0], test.count)
			}
		})
	}
}

func TestSpecial(t *testing.T) {
	s := Slice{Devices: []Device{{Name: "a"}, {Name: "b", Special: "can be allocated several times"}}}
	tests := map[string]struct {
		special  string
		verdicts []Verdict
		want     error
	}{
		"selected":     {"", all(2, Yes), ErrNotSimple},
		"not selected": {"", []Verdict{Yes, No}, nil},
		"pool":         {"has half a counter", []Verdict{Yes, No}, ErrNotSimple},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := NewNode([]Pool{{Driver: "d", Name: "p", Slices: []Slice{s}, Special: test.special}})
			_, err := n.Predict([]Claim{{Requests: []Request{{Name: "r", Count: 1, Verdicts: test.verdicts}}}}, make([]bool, 2), DefaultSteps)
			if !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

func TestInvalid(t *testing.T) {
	device := func(name string, consumes ...Amount) Slice {
		return Slice{Devices: []Device{{Name: name, Counted: len(consumes) > 0, Consumes: consumes}}}
	}
	set := CounterSet{Name: "s", Counters: map[string]int64{"c": 1}}
	tests := map[string]struct {
		pool    Pool
		devices int
		want    []string
	}{
		"two names":              {Pool{Slices: []Slice{device("a"), device("a")}}, 0, []string{"pool p of driver d: two devices have the name a"}},
		"a name of another node": {Pool{Slices: []Slice{device("a"), {Devices: device("a").Devices, Elsewhere: true}}}, 2, nil},
		"two sets":               {Pool{Sets: []CounterSet{set, set}}, 0, []string{"pool p of driver d: two counter sets have the name s"}},
		"no set": {
			Pool{Slices: []Slice{device("a", Amount{"x", "c", 1})}}, 0,
			[]string{"pool p of driver d: device a takes the counter c of counter set x, which does not exist"},
		},
		"no counter": {
			Pool{Sets: []CounterSet{set}, Slices: []Slice{device("a", Amount{"s", "d", 1})}}, 0,
			[]string{"pool p of driver d: device a takes the counter d of counter set s, which does not exist"},
		},
		"incomplete": {Pool{Incomplete: true, Slices: []Slice{device("a")}}, 0, nil},
		"valid":      {Pool{Sets: []CounterSet{set}, Slices: []Slice{device("a", Amount{"s", "c", 1})}}, 1, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.pool.Driver, test.pool.Name = "d", "p"
			n := NewNode([]Pool{test.pool})
			if n.Len() != test.devices || !slices.Equal(n.Invalid, test.want) {
				t.Errorf("%d devices and %q, want %d and %q", n.Len(), n.Invalid, test.devices, test.want)
			}
		})
	}
}

// TestRest takes a part of one GPU and the whole of another.
func TestRest(t *testing.T) {
	s := Slice{Devices: []Device{
		{Name: "a", GPU: "A", Whole: true}, {Name: "a-1", GPU: "A"}, {Name: "b", GPU: "B", Whole: true}, {Name: "c", GPU: "C", Whole: true},
		{Name: "d-1", GPU: "D"}, {Name: "e"},
	}}
	n := NewNode([]Pool{{Driver: "d", Name: "p", Slices: []Slice{s}}})
	held := n.Held(func(id ID) bool { return id.Device == "a-1" || id.Device == "e" })
	want := Rest{Whole: []string{"B", "C"}, Used: []string{"A"}}
	if diff := cmp.Diff(want, n.Rest(held, nil)); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	want = Rest{Whole: []string{"C"}, Used: []string{"A", "B"}}
	if diff := cmp.Diff(want, n.Rest(held, []Pick{{Device: 2}})); diff != "" {
		t.Errorf("after (-want +got):\n%s", diff)
	}
}
