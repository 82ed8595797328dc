package gpuquota_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/cluster/operator/gpuquota"
)

// passing is an API server that has the GPUQuota that is asked for, or none, and keeps nothing. The one of this process would take minutes.
type passing struct {
	client.Client
	there  bool
	writes int
}

func (p *passing) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	q, asked := o.(*v1alpha1.GPUQuota)
	if !p.there || !asked {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	q.Name, q.UID = key.Name, types.UID(key.Name)
	q.Spec.Namespaces = []string{"ml-" + key.Name}
	return nil
}

func (p *passing) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }
func (p *passing) Status() client.SubResourceWriter                                    { return &status{api: p} }

type status struct {
	client.SubResourceWriter
	api *passing
}

func (s *status) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	s.api.writes++
	return nil
}

// TestQuotasGone: of 10,000 GPUQuotas that come and go no memory is kept.
func TestQuotasGone(t *testing.T) {
	api := &passing{}
	clock, log := testclock.NewFakeClock(time.Unix(1e9, 0)), slog.New(slog.DiscardHandler)
	r := gpuquota.New(gpuquota.Deps{Cached: api, Client: api, Events: &events.FakeRecorder{}, Objects: attempts.New(clock, log), Clock: clock, Log: log})
	pass := func(from, to int) int64 {
		for i := from; i < to; i++ {
			for _, api.there = range []bool{true, false} {
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: fmt.Sprint("team-", i)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := pass(0, 100)
	if grown := pass(100, 10_100) - before; grown > 1<<19 {
		t.Errorf("%d KiB more are in use after 10,000 GPUQuotas", grown>>10)
	}
	if api.writes != 10_100 {
		t.Errorf("%d statuses were written", api.writes)
	}
	runtime.KeepAlive(r)
}
