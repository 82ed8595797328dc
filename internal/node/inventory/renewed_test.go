package inventory_test

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

// TestRenewed checks that a GPU that was reset or whose driver was loaded again is reported once, by the scan that
// finds it; a GPU whose lifetime is unknown, and one that a scan could not read completely, are not reported.
func TestRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(3)
		var mu sync.Mutex
		var reported []string
		i := inventory.New(inventory.Deps{
			Vendors: []inventory.Source{s}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler), Poll: time.Second,
			Renewed: func(gpus []gpu.UUID) {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, fmt.Sprint(gpus))
			},
		})
		go i.Run(t.Context())
		counted := func(energy uint64) gpu.Life { return gpu.Life{EnergyKnown: true, Persistent: true, Energy: energy} }
		check := func(what, want string, lives ...gpu.Life) {
			t.Helper()
			s.set(func(s *source) {
				for at, life := range lives {
					s.snapshot.GPUs[at].Life = life
				}
			})
			mu.Lock()
			reported = nil
			mu.Unlock()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := fmt.Sprint(reported); got != want {
				t.Errorf("%s: reported %s, want %s", what, got, want)
			}
		}
		check("the first scan", "[]", counted(1000), counted(1000), gpu.Life{})
		check("more energy", "[]", counted(2000), counted(1001), gpu.Life{})
		check("one was reset", "[[GPU-1]]", counted(2001), counted(3), gpu.Life{})
		check("nothing changes", "[]", counted(2002), counted(4), gpu.Life{})
		check("the lifetime of one is unknown, another was reset", "[[GPU-0]]", counted(1), gpu.Life{}, gpu.Life{})
		check("the driver is named for the first time", "[]", gpu.Life{Driver: "a"}, gpu.Life{Driver: "a"}, gpu.Life{Driver: "a"})
		check("the driver was loaded again", "[[GPU-0 GPU-1 GPU-2]]", gpu.Life{Driver: "b"}, gpu.Life{Driver: "b"}, gpu.Life{Driver: "b"})
		s.set(func(s *source) { s.snapshot.GPUs[2].Health.Partial = true })
		check("one was not read completely", "[[GPU-0 GPU-1]]", gpu.Life{Driver: "c"}, gpu.Life{Driver: "c"}, gpu.Life{Driver: "c"})
		s.set(func(s *source) { s.snapshot.GPUs[2].Health.Partial = false })
		check("and then it was", "[[GPU-2]]")
		s.set(func(s *source) { s.snapshot.GPUs[1].Health.State = gpu.Gone })
		check("one does not respond", "[]")
		s.set(func(s *source) { s.snapshot.GPUs[1].Health.State = "" })
		check("and responds again", "[[GPU-1]]")
	})
}
