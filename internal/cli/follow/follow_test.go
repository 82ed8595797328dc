package follow

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// thing returns an object whose rows are written KEY=STATE, with a ! before those that are hidden.
func thing(name string, rows ...string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"kind": "Thing", "metadata": map[string]any{"name": name}, "rows": strings.Join(rows, " ")}}
}

// cluster is an API server with things.
type cluster struct {
	watches chan *watch.FakeWatcher
	refused error

	mu      sync.Mutex
	things  []*unstructured.Unstructured
	listErr error
	reads   int
}

// set changes what lists return. It returns how many there were.
func (c *cluster) set(things []*unstructured.Unstructured, err error) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.things, c.listErr = things, err
	return c.reads
}

func (c *cluster) list(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	list := &unstructured.UnstructuredList{}
	for _, one := range c.things {
		list.Items = append(list.Items, *one)
	}
	return list, c.listErr
}

func (c *cluster) watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	if c.refused != nil {
		return nil, c.refused
	}
	fake := watch.NewFake()
	c.watches <- fake
	return fake, nil
}

func rowsOf(object *unstructured.Unstructured) ([]Row, error) {
	var rows []Row
	text, _, _ := unstructured.NestedString(object.Object, "rows")
	for one := range strings.FieldsSeq(text) {
		key, state, _ := strings.Cut(strings.TrimPrefix(one, "!"), "=")
		state, age, _ := strings.Cut(state, "@")
		rows = append(rows, Row{Key: key, Cells: []string{object.GetName(), key, state, age}, Hidden: strings.HasPrefix(one, "!")})
	}
	return rows, nil
}

func deps(c *cluster, out, err *strings.Builder) Deps {
	return Deps{List: c.list, Watch: c.watch, Rows: rowsOf, Head: []string{"THING", "ROW", "STATE", "AGE"}, State: 2, Age: 3, Out: out, Err: err, Clock: clock.RealClock{}}
}

// lines returns what was printed since the last call, with single blanks.
func lines(out *strings.Builder) []string {
	var found []string
	for line := range strings.Lines(out.String()) {
		found = append(found, strings.Join(strings.Fields(line), " "))
	}
	out.Reset()
	return found
}

func TestRun(t *testing.T) {
	gone := func(events *watch.FakeWatcher) {
		status := apierrors.NewResourceExpired("too old").ErrStatus
		events.Error(&status)
	}
	tests := map[string]struct {
		first  []*unstructured.Unstructured
		change func(*cluster, *watch.FakeWatcher)
		start  []string
		want   []string
		errors string
		shown  []string
	}{
		"a row changes": {
			first:  []*unstructured.Unstructured{thing("b", "x=ok"), thing("a", "x=ok", "y=ok")},
			start:  []string{"THING ROW STATE AGE", "a x ok", "a y ok", "b x ok"},
			change: func(_ *cluster, w *watch.FakeWatcher) { w.Modify(thing("a", "x=ok", "y=bad")) },
			want:   []string{"a y bad"},
		},
		"an age changes": {
			first:  []*unstructured.Unstructured{thing("a", "x=ok@1s")},
			start:  []string{"THING ROW STATE AGE", "a x ok 1s"},
			change: func(_ *cluster, w *watch.FakeWatcher) { w.Modify(thing("a", "x=ok@2s")) },
		},
		"the header comes with the first row": {
			change: func(_ *cluster, w *watch.FakeWatcher) { w.Add(thing("a", "x=ok")) },
			want:   []string{"THING ROW STATE AGE", "a x ok"},
		},
		"an object and a row go": {
			first:  []*unstructured.Unstructured{thing("a", "x=ok"), thing("b", "x=ok", "y=ok")},
			start:  []string{"THING ROW STATE AGE", "a x ok", "b x ok", "b y ok"},
			change: func(_ *cluster, w *watch.FakeWatcher) { w.Modify(thing("b", "x=ok")); w.Delete(thing("a", "x=ok")) },
			want:   []string{"b y (removed)", "a x (removed)"},
		},
		"a row is hidden": {
			first: []*unstructured.Unstructured{thing("a", "x=ok", "!y=ok")},
			start: []string{"THING ROW STATE AGE", "a x ok"},
			change: func(_ *cluster, w *watch.FakeWatcher) {
				w.Modify(thing("a", "!x=free", "!y=bad"))
				w.Modify(thing("a", "!x=bad"))
				w.Modify(thing("a", "x=ok"))
			},
			want: []string{"a x free", "a x ok"},
		},
		"what happens between two watches": {
			first: []*unstructured.Unstructured{thing("a", "x=ok"), thing("b", "x=ok")},
			start: []string{"THING ROW STATE AGE", "a x ok", "b x ok"},
			change: func(c *cluster, w *watch.FakeWatcher) {
				c.set([]*unstructured.Unstructured{thing("b", "x=bad"), thing("c", "x=ok")}, nil)
				w.Stop()
				(<-c.watches).Modify(thing("c", "x=bad"))
			},
			want: []string{"b x bad", "c x ok", "a x (removed)", "c x bad"},
		},
		"a watch that is too old": {
			first:  []*unstructured.Unstructured{thing("a", "x=ok")},
			start:  []string{"THING ROW STATE AGE", "a x ok"},
			change: func(c *cluster, w *watch.FakeWatcher) { gone(w); w.Stop(); <-c.watches },
		},
		"the server is away": {
			first: []*unstructured.Unstructured{thing("a", "x=ok")},
			start: []string{"THING ROW STATE AGE", "a x ok"},
			change: func(c *cluster, w *watch.FakeWatcher) {
				refused := errors.New("refused")
				c.set(nil, refused)
				w.Stop()
				for c.set(nil, refused) < 5 {
					<-clock.RealClock{}.After(firstWait)
				}
				c.set([]*unstructured.Unstructured{thing("a", "x=bad")}, nil)
				<-c.watches
			},
			want:   []string{"a x bad"},
			errors: "the connection was lost, trying again: list: refused\n",
		},
		"not selected": {
			first:  []*unstructured.Unstructured{thing("a", "x=ok"), thing("b", "x=ok")},
			start:  []string{"THING ROW STATE AGE", "b x ok"},
			shown:  []string{"b"},
			change: func(_ *cluster, w *watch.FakeWatcher) { w.Modify(thing("a", "x=bad")); w.Modify(thing("b", "x=bad")) },
			want:   []string{"b x bad"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var out, problems strings.Builder
				c := &cluster{things: tc.first, watches: make(chan *watch.FakeWatcher)}
				d := deps(c, &out, &problems)
				if tc.shown != nil {
					d.Select = func(context.Context) ([]string, error) { return tc.shown, nil }
				}
				ended := make(chan error)
				go func() { ended <- Run(ctx, d) }()
				events := <-c.watches
				synctest.Wait()
				if diff := cmp.Diff(tc.start, lines(&out)); diff != "" {
					t.Errorf("at the start, -want +got:\n%s", diff)
				}
				tc.change(c, events)
				synctest.Wait()
				stop()
				if err := <-ended; err != nil {
					t.Errorf("it ended with %v", err)
				}
				if diff := cmp.Diff(tc.want, lines(&out)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if problems.String() != tc.errors {
					t.Errorf("errors %q, want %q", problems.String(), tc.errors)
				}
			})
		})
	}
}

// selection is what Select returns, and how often it was asked.
type selection struct {
	mu    sync.Mutex
	names []string
	err   error
	asked int
}

func (s *selection) set(names []string, err error) (asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names, s.err = names, err
	return s.asked
}

func (s *selection) read(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.names, s.err
}

// TestSelectionChanges: objects that are selected later are shown, those that are not selected any more are removed, and how often that
// is read does not depend on the number of events.
func TestSelectionChanges(t *testing.T) {
	first := []*unstructured.Unstructured{thing("a", "x=ok"), thing("b", "x=ok")}
	start := []string{"THING ROW STATE AGE", "a x ok"}
	tests := map[string]struct {
		change func(*selection, *cluster, *watch.FakeWatcher)
		after  time.Duration
		want   []string
		errors string
		asked  int
	}{
		"nothing": {change: func(*selection, *cluster, *watch.FakeWatcher) {}, after: 3 * selectEvery, asked: 4},
		"one more": {
			change: func(s *selection, _ *cluster, _ *watch.FakeWatcher) { s.set([]string{"b", "a"}, nil) },
			after:  selectEvery, want: []string{"b x ok"}, asked: 2,
		},
		"one less": {
			change: func(s *selection, _ *cluster, w *watch.FakeWatcher) {
				s.set(nil, nil)
				w.Modify(thing("a", "x=bad"))
			},
			after: selectEvery, want: []string{"a x bad", "a x (removed)"}, asked: 2,
		},
		"a new object, at once": {
			change: func(s *selection, _ *cluster, w *watch.FakeWatcher) {
				time.Sleep(selectAgain)
				s.set([]string{"a", "c"}, nil)
				w.Add(thing("c", "x=ok"))
			},
			want: []string{"c x ok"}, asked: 2,
		},
		"many new objects": {
			change: func(s *selection, _ *cluster, w *watch.FakeWatcher) {
				time.Sleep(selectAgain)
				s.set([]string{"a", "e"}, nil)
				for _, name := range []string{"c", "d", "e"} {
					w.Add(thing(name, "x=ok"))
				}
			},
			want: []string{"e x ok"}, asked: 2,
		},
		"events of an object that is not selected": {
			change: func(_ *selection, _ *cluster, w *watch.FakeWatcher) {
				for range 9 {
					time.Sleep(selectAgain / 2)
					w.Modify(thing("b", "x=bad"))
				}
			},
			asked: 1,
		},
		"an object that is gone": {
			change: func(s *selection, _ *cluster, w *watch.FakeWatcher) {
				w.Delete(thing("b", "x=ok"))
				s.set([]string{"a", "b"}, nil)
			},
			after: selectEvery, asked: 2,
		},
		"an object that is gone after a watch": {
			change: func(s *selection, c *cluster, w *watch.FakeWatcher) {
				c.set(first[:1], nil)
				w.Stop()
				<-c.watches
				s.set([]string{"a", "b"}, nil)
			},
			after: selectEvery, asked: 3,
		},
		"the selection cannot be read": {
			change: func(s *selection, c *cluster, _ *watch.FakeWatcher) {
				s.set(nil, errors.New("refused"))
				time.Sleep(selectEvery)
				synctest.Wait()
				s.set([]string{"b"}, nil)
				select {
				case <-c.watches:
				case <-time.After(longestWait):
				}
			},
			want: []string{"a x (removed)", "b x ok"}, asked: 3, errors: "the connection was lost, trying again: refused\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var out, problems strings.Builder
				c := &cluster{things: first, watches: make(chan *watch.FakeWatcher)}
				s := &selection{names: []string{"a"}}
				d := deps(c, &out, &problems)
				d.Select = s.read
				ended := make(chan error)
				go func() { ended <- Run(ctx, d) }()
				events := <-c.watches
				synctest.Wait()
				if diff := cmp.Diff(start, lines(&out)); diff != "" {
					t.Errorf("at the start, -want +got:\n%s", diff)
				}
				tc.change(s, c, events)
				time.Sleep(tc.after)
				synctest.Wait()
				stop()
				if err := <-ended; err != nil {
					t.Errorf("it ended with %v", err)
				}
				if diff := cmp.Diff(tc.want, lines(&out)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if asked := s.set(nil, nil); asked != tc.asked || problems.String() != tc.errors {
					t.Errorf("the selection was read %d times, want %d; errors %q, want %q", asked, tc.asked, problems.String(), tc.errors)
				}
			})
		})
	}
}

// TestErrorsAtTheStart end it: the user is there, and nothing was lost.
func TestErrorsAtTheStart(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no"))
	for name, c := range map[string]*cluster{
		"list":  {listErr: forbidden},
		"watch": {refused: forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			var out, problems strings.Builder
			err := Run(t.Context(), deps(c, &out, &problems))
			if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), name+": ") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// full is an output that cannot be written.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestOutputFails(t *testing.T) {
	c := &cluster{watches: make(chan *watch.FakeWatcher)}
	d := deps(c, &strings.Builder{}, &strings.Builder{})
	d.Out = full{}
	ended := make(chan error)
	go func() { ended <- Run(t.Context(), d) }()
	(<-c.watches).Add(thing("a", "x=ok"))
	if err := <-ended; err == nil || err.Error() != "no space" {
		t.Errorf("got %v", err)
	}
}
