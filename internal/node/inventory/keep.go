package inventory

import (
	"log/slog"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// healthFile is the file that carries what is known of the cards over a restart. A reboot voids all of it, since no
// fault of the card is carried over one without showing again.
func healthFile(path, bootID string) statefile.File[map[gpu.UUID]health.Record] {
	return statefile.File[map[gpu.UUID]health.Record]{
		Path: path, What: "what was known of the GPUs' health", Format: "berth-health", Version: 1, BootID: bootID,
	}
}

// restored prepares what was read.
func restored(cards map[gpu.UUID]health.Record, now time.Time) map[gpu.UUID]health.Record {
	for id, record := range cards {
		cards[id] = record.Restored(now)
	}
	return cards
}

// writeHealth replaces the file by what Encode made.
func writeHealth(path string, blob []byte) error { return healthFile(path, "").Write(blob) }

// keeper writes the file in a goroutine of its own, so that a file system that hangs delays no
// event. While a write is under way only the newest content waits for the next one.
type keeper struct {
	write func([]byte) error
	log   *slog.Logger
	next  chan []byte
	done  chan struct{}
}

func startKeeper(write func([]byte) error, log *slog.Logger) *keeper {
	k := &keeper{write: write, log: log, next: make(chan []byte, 1), done: make(chan struct{})}
	go k.run()
	return k
}

// keep hands over the newest content. It never waits. One goroutine calls it.
func (k *keeper) keep(blob []byte) {
	select {
	case <-k.next:
	default:
	}
	k.next <- blob
}

// end asks for no more writes; what it returns is closed when the last one is done. keep must not be
// called any more.
func (k *keeper) end() <-chan struct{} {
	close(k.next)
	return k.done
}

func (k *keeper) run() {
	defer close(k.done)
	last := ""
	for blob := range k.next {
		err := k.write(blob)
		switch {
		case err == nil:
			last = ""
		case err.Error() != last:
			k.log.Error("a restart would forget the faults of GPUs", "error", err)
			last = err.Error()
		}
	}
}
