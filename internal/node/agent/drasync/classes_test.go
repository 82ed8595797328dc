package drasync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// classesServed are the resources that the devices have.
type classesServed struct {
	signal.Broadcast
	mu   sync.Mutex
	list []string
}

func (s *classesServed) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

func (s *classesServed) set(names ...string) {
	s.mu.Lock()
	s.list = names
	s.mu.Unlock()
	s.Set()
}

// TestClasses: a missing class is reported at once when a device needs it, and the report ends when the class is there or no device needs
// it any more.
func TestClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served, client := &classesServed{}, fake.NewClientset()
		var mu sync.Mutex
		var codes []string
		reads := func() (n int) {
			for _, action := range client.Actions() {
				if action.GetVerb() == "list" {
					n++
				}
			}
			return n
		}
		c := &classChecker{DriverName: "gpu.example.com", Client: client, Served: served.names, Changed: served.Subscribe, Clock: clock.RealClock{}, Report: func(_ string, problems ...gpu.Cause) {
			mu.Lock()
			defer mu.Unlock()
			codes = nil
			for _, p := range problems {
				codes = append(codes, p.Code)
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = c.Run(ctx) }()
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(codes, want) {
				t.Errorf("%s: the problems are %v, want %v", when, codes, want)
			}
		}
		served.set()
		expect("without a device of DRA")
		if n := reads(); n > 0 {
			t.Errorf("read the classes %d times without a device that needs one", n)
		}
		served.set(offer.DefaultResource)
		expect("with a device", class.Missing)
		classes, err := class.Classes(class.Settings{Driver: "gpu.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.ResourceV1().DeviceClasses().Create(ctx, &classes[0], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(classesReadAgain)
		expect("with the class")
		before := reads()
		for range 100 {
			served.Set()
			synctest.Wait()
		}
		if n := reads() - before; n > 0 {
			t.Errorf("read the classes %d times for changes of other things", n)
		}
		served.set(offer.DefaultResource, "nvidia.com/mig-1g.10gb")
		expect("with a second resource", class.Missing)
		served.set()
		expect("without devices")
	})
}

// TestExists reads a class: one that is there, another one, and each kind of refusal.
func TestExists(t *testing.T) {
	const name = "gpu.example.com"
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}
	tests := map[string]struct {
		classes []runtime.Object
		fails   error
		want    bool
		err     bool
	}{
		"there":     {classes: []runtime.Object{&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}}, want: true},
		"another":   {classes: []runtime.Object{&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "mig-" + name}}}},
		"none":      {},
		"no API":    {fails: apierrors.NewNotFound(resource, "")},
		"forbidden": {fails: apierrors.NewForbidden(resource, "", errors.New("no role"))},
		"away":      {fails: errors.New("connection refused"), err: true},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			client := fake.NewClientset(test.classes...)
			if test.fails != nil {
				client.PrependReactor("list", "deviceclasses", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, test.fails })
			}
			got, err := ClassExists(client, name)(t.Context())
			if got != test.want || (err != nil) != test.err {
				t.Errorf("got %t, %v; want %t, an error: %t", got, err, test.want, test.err)
			}
		})
	}
	if ClassExists(nil, name) != nil {
		t.Error("there is a function without an API server")
	}
}
