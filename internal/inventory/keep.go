package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/health"
)

// keptVersion is the version of the file that outlasts a restart; maxKept bounds its size.
const (
	keptVersion = 1
	maxKept     = 4 << 20
)

// kept is the file's content.
type kept struct {
	Version int                        `json:"version"`
	BootID  string                     `json:"bootID"`
	Cards   map[gpu.UUID]health.Record `json:"cards"`
}

// restore reads what was known of the cards before this process. A reboot voids all of it, since no fault of
// the card is carried over one without showing again. A report counts from now on, so that a scan
// cannot disprove it too soon.
func restore(path, bootID string, now time.Time) (map[gpu.UUID]health.Record, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %w", err)
	}
	defer file.Close()
	blob, err := io.ReadAll(io.LimitReader(file, maxKept))
	if err != nil {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %w", err)
	}
	var form kept
	if err := json.Unmarshal(blob, &form); err != nil {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %s is damaged: %w; going on without", path, err)
	}
	if form.Version != keptVersion {
		return nil, fmt.Errorf("read what was known of the GPUs' health: %s has version %d, this Berth reads version %d; going on without", path, form.Version, keptVersion)
	}
	if form.BootID != bootID {
		return nil, nil
	}
	for _, record := range form.Cards {
		if record.Gone {
			continue // its coming back is proof, however soon
		}
		for i := range record.Standing {
			record.Standing[i].Last = now
		}
	}
	return form.Cards, nil
}

// encode gives the file's content for what is known of the cards.
func encode(bootID string, cards map[gpu.UUID]health.Record) ([]byte, error) {
	blob, err := json.Marshal(kept{Version: keptVersion, BootID: bootID, Cards: cards})
	if err != nil {
		return nil, fmt.Errorf("keep the GPUs' health: %w", err)
	}
	return blob, nil
}

// writeKept puts the content in place of the file.
func writeKept(path string, blob []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the GPUs' health: %w", err)
	}
	if err := renameio.WriteFile(path, blob, 0o600); err != nil {
		return fmt.Errorf("keep the GPUs' health: %w", err)
	}
	return nil
}

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
