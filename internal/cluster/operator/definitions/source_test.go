package definitions

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// answers says what the API server serves, one answer for each question; the last one is repeated.
type answers struct {
	asked int
	list  []func() (*metav1.APIResourceList, error)
}

func (a *answers) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	answer := a.list[min(a.asked, len(a.list)-1)]
	a.asked++
	return answer()
}

// TestWhenServed: the objects are requested and watched when the API server serves their kind.
func TestWhenServed(t *testing.T) {
	absent := func() (*metav1.APIResourceList, error) {
		return served{}.ServerResourcesForGroupVersion("resource.k8s.io/v1")
	}
	without := func() (*metav1.APIResourceList, error) {
		return &metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "resourceclaims"}}}, nil
	}
	present := func() (*metav1.APIResourceList, error) {
		return &metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "resourceclaims"}, {Name: "deviceclasses"}}}, nil
	}
	broken := func() (*metav1.APIResourceList, error) { return nil, errors.New("connection refused") }
	tests := map[string]struct {
		answers []func() (*metav1.APIResourceList, error)
		// wait is the time until the watch starts; 0 means at once, less than 0 never.
		wait  time.Duration
		lines int
	}{
		"at once":                {[]func() (*metav1.APIResourceList, error){present}, 0, 0},
		"never":                  {[]func() (*metav1.APIResourceList, error){absent}, -1, 1},
		"a version without them": {[]func() (*metav1.APIResourceList, error){without}, -1, 1},
		"after two minutes":      {[]func() (*metav1.APIResourceList, error){absent, absent, present}, 2 * time.Minute, 1},
		"after errors":           {[]func() (*metav1.APIResourceList, error){broken, broken, present}, 10 * time.Second, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				began, watched := time.Now(), time.Duration(-1)
				var logged bytes.Buffer
				s := whenServed{kind: classKind(), names: []string{"a", "b"}, resources: &answers{list: tc.answers}, clock: clock.RealClock{},
					log: slog.New(slog.NewTextHandler(&logged, nil)), watch: source.TypedFunc[request](func(context.Context, queue) error {
						watched = time.Since(began)
						return nil
					})}
				q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[request]())
				if err := s.Start(ctx, q); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // of the bubble's clock
				synctest.Wait()
				if watched != tc.wait {
					t.Errorf("watched after %v, want %v", watched, tc.wait)
				}
				if want := map[bool]int{true: 2}[tc.wait >= 0]; q.Len() != want {
					t.Errorf("%d requests, want %d", q.Len(), want)
				}
				if lines := strings.Count(logged.String(), "\n"); lines != tc.lines {
					t.Errorf("%d lines, want %d:\n%s", lines, tc.lines, &logged)
				}
				cancel()
				q.ShutDown()
			})
		})
	}
}

// TestWake: a change of a kept object requests it; others with Berth's label do not.
func TestWake(t *testing.T) {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[request]())
	defer q.ShutDown()
	handler := wake(map[string]wanted{"kept": {}})
	for _, name := range []string{"kept", "other"} {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		handler.Create(t.Context(), event.TypedCreateEvent[*metav1.PartialObjectMetadata]{Object: object}, q)
		handler.Update(t.Context(), event.TypedUpdateEvent[*metav1.PartialObjectMetadata]{ObjectOld: object, ObjectNew: object}, q)
		handler.Delete(t.Context(), event.TypedDeleteEvent[*metav1.PartialObjectMetadata]{Object: object}, q)
	}
	var got []request
	for q.Len() > 0 {
		req, _ := q.Get()
		got = append(got, req)
	}
	if want := []request{{name: "kept"}}; !slices.Equal(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
}

// TestClassesByResource: each class stands for a resource of its own, and selects devices of the driver.
func TestClassesByResource(t *testing.T) {
	classes, err := ClassesByResource()
	if err != nil {
		t.Fatal(err)
	}
	names, err := embedded(classKind())
	if err != nil {
		t.Fatal(err)
	}
	if len(classes) != len(names) || classes["nvidia.com/gpu"] != "gpu.berth.dev" || classes["nvidia.com/mig-1g.5gb"] != "mig-1g.5gb.gpu.berth.dev" {
		t.Errorf("%d names of %d classes: %v", len(classes), len(names), classes)
	}
	if n := strings.Count(deviceClasses, `device.driver == "`+ClassDriver+`"`); n != len(names) {
		t.Errorf("%d of %d classes select devices of %s", n, len(names), ClassDriver)
	}
}
