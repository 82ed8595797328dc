package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cli/term"
)

const (
	// pageSize is the number of objects per page of a list.
	pageSize = 500
	// watchSeconds is how long one watch lasts. Then all is listed again.
	watchSeconds = 600
	// After an error, or the end of a watch, it waits for firstWait and, as long as errors go on, up to longestWait.
	firstWait   = time.Second
	longestWait = 30 * time.Second
	// selectEvery is the time between two reads of what is selected, and selectAgain the shortest one, for an object that is new.
	selectEvery = 5 * time.Second
	selectAgain = time.Second
)

// removed marks a row that does not exist any more.
const removed = "(removed)"

// Row is a row of the table.
type Row struct {
	// Key identifies the row among those of its object.
	Key   string
	Cells []string
	// Hidden is set when the row is not one that the user asked for. A row that becomes hidden is printed once more.
	Hidden bool
}

// Deps are the dependencies of Run.
type Deps struct {
	// List and Watch read the objects.
	List  func(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Select returns the names of the objects that are shown. It is asked whenever the objects are listed, then every few seconds and, at
	// most every second, for an object that is new. Nil shows all.
	Select func(context.Context) ([]string, error)
	// Rows returns the rows of an object.
	Rows func(*unstructured.Unstructured) ([]Row, error)
	// Head is the header; nil for none.
	Head []string
	// State is the column in which a row is marked as removed, and Age one that changes by itself; -1 for none.
	State int
	Age   int
	Out   io.Writer
	Err   io.Writer
	Clock clock.Clock
}

// Run prints until ctx ends, or until the output cannot be written. An error before the first watch ends it too; later ones are
// printed to Err, and it tries again.
func Run(ctx context.Context, deps Deps) error {
	f := follower{Deps: deps, known: map[string][]Row{}, objects: map[string]*unstructured.Unstructured{}}
	last := ""
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		f.connected = false
		err := f.listAndWatch(ctx)
		if f.connected {
			wait, last = firstWait, ""
		}
		_, unwritable := errors.AsType[*writeError](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!f.began || unwritable):
			return err
		case err != nil && err.Error() != last:
			last = err.Error()
			fmt.Fprintf(f.Err, "the connection was lost, trying again: %s\n", term.Clean(last))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.Clock.After(wait):
		}
	}
}

// writeError is an error of the output.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// follower is the state of Run.
type follower struct {
	Deps
	// began is set once a watch has begun, and connected when the one of this attempt has.
	began     bool
	connected bool
	// known are the rows of each object as they were printed.
	known map[string][]Row
	// With Select, shown are the names of the objects that are selected, sorted, selected is when they were read, and objects are all of
	// them, which can be selected later.
	shown    []string
	selected time.Time
	objects  map[string]*unstructured.Unstructured
	columns  term.Columns
	headed   bool
}

// listAndWatch prints what differs from what was printed, and then the changes until the watch ends.
func (f *follower) listAndWatch(ctx context.Context) error {
	if _, err := f.reselect(ctx); err != nil {
		return err
	}
	objects, version, err := f.list(ctx)
	if err != nil {
		return err
	}
	clear(f.objects)
	if err := f.replace(objects); err != nil {
		return err
	}
	seconds := int64(watchSeconds)
	events, err := f.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	f.began, f.connected = true, true
	return f.watch(ctx, events)
}

// watch prints the changes until the watch ends.
func (f *follower) watch(ctx context.Context, events watch.Interface) error {
	timer := f.Clock.NewTimer(selectEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-events.ResultChan():
			if !open {
				return nil
			}
			if err := f.handle(ctx, event); err != nil {
				return err
			}
		case <-timer.C():
			if err := f.refresh(ctx, selectEvery); err != nil {
				return err
			}
			timer.Reset(selectEvery)
		}
	}
}

// reselect reads which objects are shown. It reports whether these are others than before.
func (f *follower) reselect(ctx context.Context) (bool, error) {
	if f.Select == nil {
		return false, nil
	}
	names, err := f.Select(ctx)
	if err != nil {
		return false, err
	}
	f.selected = f.Clock.Now()
	before := f.shown
	f.shown = slices.Sorted(slices.Values(names))
	return !slices.Equal(before, f.shown), nil
}

// refresh prints what differs when other objects are selected, unless that was read less than some time ago.
func (f *follower) refresh(ctx context.Context, least time.Duration) error {
	if f.Select == nil || f.Clock.Since(f.selected) < least {
		return nil
	}
	changed, err := f.reselect(ctx)
	if err != nil || !changed {
		return err
	}
	return f.replace(slices.SortedFunc(maps.Values(f.objects), byName))
}

func byName(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) }

// list returns the objects, in the order of their names, and the version that a watch goes on from.
func (f *follower) list(ctx context.Context) ([]*unstructured.Unstructured, string, error) {
	var objects []*unstructured.Unstructured
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := f.List(ctx, options)
		if err != nil {
			return nil, "", fmt.Errorf("list: %w", err)
		}
		for i := range page.Items {
			objects = append(objects, &page.Items[i])
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			slices.SortFunc(objects, byName)
			return objects, page.GetResourceVersion(), nil
		}
	}
}

// handle prints what an event changes.
func (f *follower) handle(ctx context.Context, event watch.Event) error {
	if event.Type == watch.Error {
		err := apierrors.FromObject(event.Object)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return nil // The watch ends now, and all is listed again.
		}
		return fmt.Errorf("watch: %w", err)
	}
	object, ok := event.Object.(*unstructured.Unstructured)
	if !ok || event.Type == watch.Bookmark {
		return nil
	}
	if event.Type == watch.Deleted {
		delete(f.objects, object.GetName())
		return f.print(f.update(object.GetName(), nil))
	}
	if f.isNew(object) {
		if err := f.refresh(ctx, selectAgain); err != nil {
			return err
		}
	}
	rows, err := f.rows(object)
	if err != nil {
		return err
	}
	return f.print(f.update(object.GetName(), rows))
}

// isNew reports whether it is not known whether an object is selected.
func (f *follower) isNew(object *unstructured.Unstructured) bool {
	return f.Select != nil && !slices.Contains(f.shown, object.GetName()) && f.objects[object.GetName()] == nil
}

func (f *follower) rows(object *unstructured.Unstructured) ([]Row, error) {
	if f.Select != nil {
		f.objects[object.GetName()] = object
	}
	if f.Select != nil && !slices.Contains(f.shown, object.GetName()) {
		return nil, nil
	}
	rows, err := f.Rows(object)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return rows, nil
}

// replace prints what differs in a list of all objects.
func (f *follower) replace(objects []*unstructured.Unstructured) error {
	var cells [][]string
	gone := maps.Clone(f.known)
	for _, object := range objects {
		rows, err := f.rows(object)
		if err != nil {
			return err
		}
		delete(gone, object.GetName())
		cells = append(cells, f.update(object.GetName(), rows)...)
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		cells = append(cells, f.update(name, nil)...)
	}
	return f.print(cells)
}

// update sets the rows of an object. It returns those that have to be printed.
func (f *follower) update(name string, rows []Row) (cells [][]string) {
	before := f.known[name]
	find := func(in []Row, key string) int {
		return slices.IndexFunc(in, func(r Row) bool { return r.Key == key })
	}
	for _, row := range rows {
		at := find(before, row.Key)
		switch {
		case at < 0 && row.Hidden:
		case at < 0 || !(row.Hidden && before[at].Hidden) && !f.same(row.Cells, before[at].Cells):
			cells = append(cells, row.Cells)
		}
	}
	for _, row := range before {
		if !row.Hidden && find(rows, row.Key) < 0 {
			marked := slices.Clone(row.Cells)
			marked[f.State] = removed
			cells = append(cells, marked)
		}
	}
	if f.known[name] = rows; rows == nil {
		delete(f.known, name)
	}
	return cells
}

// same reports whether two rows differ only in the column that changes by itself.
func (f *follower) same(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if i != f.Age && a[i] != b[i] {
			return false
		}
	}
	return true
}

// print prints rows, the first ones below the header.
func (f *follower) print(cells [][]string) error {
	if len(cells) == 0 {
		return nil
	}
	if !f.headed && f.Head != nil {
		cells = append([][]string{f.Head}, cells...)
	}
	f.headed = true
	if err := f.columns.Print(f.Out, cells); err != nil {
		return &writeError{err}
	}
	return nil
}
