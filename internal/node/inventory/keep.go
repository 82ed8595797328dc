package inventory

import (
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// healthFile is the file that carries the health records of the GPUs over a restart. It is invalid after a reboot, since a
// fault that outlasts one is found again.
func healthFile(path, bootID string) statefile.File[map[gpu.UUID]health.Record] {
	return statefile.File[map[gpu.UUID]health.Record]{
		Path: path, What: "what was known of the GPUs' health", Format: "berth-health", Version: 1, BootID: bootID,
	}
}

// restored converts the records of an earlier process.
func restored(records map[gpu.UUID]health.Record, now time.Time) map[gpu.UUID]health.Record {
	for id, record := range records {
		records[id] = record.Restored(now)
	}
	return records
}

// writeHealth replaces the file by an encoded one.
func writeHealth(path string, blob []byte) error { return healthFile(path, "").Write(blob) }

// The sources of the problems with the file.
const (
	// LostSource: it could not be used. The problem stays until this process ends.
	LostSource = "health-file"
	// UnsavedSource: it cannot be written.
	UnsavedSource = "health-file-unsaved"
)

// keeper writes the file in a goroutine of its own, so that a file system that hangs delays no event. While a write is
// in progress only the newest content waits for the next one. A write that fails is repeated until one succeeds, and once more at the end.
type keeper struct {
	write   func([]byte) error
	written func(err error, first bool)
	clock   clock.Clock
	next    chan []byte
	done    chan struct{}
}

func startKeeper(write func([]byte) error, written func(err error, first bool), clock clock.Clock) *keeper {
	k := &keeper{write: write, written: written, clock: clock, next: make(chan []byte, 1), done: make(chan struct{})}
	go k.run()
	return k
}

// keep passes the newest content to the writer. It never waits. One goroutine at a time calls it.
func (k *keeper) keep(blob []byte) {
	select {
	case <-k.next:
	default:
	}
	k.next <- blob
}

// end returns a channel that is closed when the last write is done. keep must not be called after it.
func (k *keeper) end() <-chan struct{} {
	close(k.next)
	return k.done
}

func (k *keeper) run() {
	defer close(k.done)
	var unsaved []byte
	var retry statefile.Retry
	var again <-chan time.Time
	for first := true; ; first = false {
		select {
		case blob, more := <-k.next:
			if !more && unsaved != nil {
				_ = k.write(unsaved) // It was reported.
			}
			if !more {
				return
			}
			unsaved = blob
		case <-again:
		}
		err := k.write(unsaved)
		if err == nil {
			unsaved, again = nil, nil
			retry.Reset()
		} else {
			again = k.clock.After(retry.Next())
		}
		k.written(err, first)
	}
}
