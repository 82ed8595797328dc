package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
)

// source is a scripted node: the results and durations of its scans, and the events of its watch.
type source struct {
	mu       sync.Mutex
	snapshot gpu.Snapshot
	err      error
	// takes is the duration of a scan; hang makes it wait for release.
	takes   time.Duration
	hang    bool
	release chan struct{}
	doing   gpu.UUID
	call    string

	// past are the events in the kernel log, and pasts how often they were read.
	past  []gpu.Event
	pasts int

	scans    int
	running  int
	most     int
	watches  int
	events   chan gpu.Event
	watchErr chan error
}

func newSource(gpus int) *source {
	s := &source{events: make(chan gpu.Event), watchErr: make(chan error), release: make(chan struct{})}
	s.snapshot = nodeOf(gpus)
	return s
}

// nodeOf returns a healthy node with this number of GPUs.
func nodeOf(gpus int) gpu.Snapshot {
	s := gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "1"}}}, Topology: gpu.NewTopology(gpus)}
	for i := range gpus {
		s.GPUs = append(s.GPUs, gpu.GPU{UUID: idOf(i), Vendor: gpu.NVIDIA, Index: i, Health: gpu.Health{Recovery: gpu.RecoveryNone}})
	}
	return s
}

func idOf(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", i)) }

// set changes the results of later scans.
func (s *source) set(change func(*source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *source) Traits() gpu.Traits {
	return gpu.Traits{Name: gpu.NVIDIA, Title: "NVIDIA", TimeoutCode: "NVML_TIMEOUT"}
}

func (s *source) Scan(ctx context.Context) (gpu.Snapshot, error) {
	s.mu.Lock()
	s.scans++
	s.running++
	s.most = max(s.most, s.running)
	takes, hang, release := s.takes, s.hang, s.release
	s.mu.Unlock()
	if hang {
		<-release
	}
	if takes > 0 {
		time.Sleep(takes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	out := s.snapshot
	out.GPUs = append([]gpu.GPU(nil), s.snapshot.GPUs...)
	return out, s.err
}

func (s *source) Watch(ctx context.Context, emit func(gpu.Event)) error {
	s.mu.Lock()
	s.watches++
	s.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.watchErr:
			return err
		case event := <-s.events:
			emit(event)
		}
	}
}

func (s *source) Past() (events []gpu.Event, last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pasts++
	for i, event := range s.past {
		event.Record = uint64(i + 1)
		events = append(events, event)
	}
	return events, uint64(len(s.past))
}

func (s *source) Doing() (gpu.UUID, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doing, s.call
}

var errBroken = errors.New("read the node: it is on fire")

// rescan requests a scan and does not wait for its end; inside a bubble of synctest.
func rescan(i *inventory.Inventory) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go i.Refresh(ctx)
	synctest.Wait()
}
