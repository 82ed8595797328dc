// Package library ends the agent when the driver was upgraded while it ran: a process can load NVML only once, so the
// new library needs a new process.
//
// It guarantees that the agent ends at most once for each library file, so that a driver that is broken for another
// reason does not restart the agent forever.
//
// What wakes it: Replaced, which the hardware adapter calls. What it writes: the path of the file, to library.json in
// the state directory, before the agent ends. It waits for nothing else; while that file cannot be written the agent
// continues to run, and tries again. It must not import the agent or another package below it.
package library

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// fileName is the file that has the path of the library for which an agent ended.
const fileName = "library.json"

// Deps are the dependencies of a Watch.
type Deps struct {
	StateDir string
	// BootID invalidates a file of an earlier boot.
	BootID string
	Clock  clock.Clock
	Log    *slog.Logger
}

// Watch ends the agent once per replaced library file. Create it with New, start it with Run.
type Watch struct {
	file     statefile.File[string]
	replaced chan string
	clock    clock.Clock
	log      *slog.Logger
}

// New returns a Watch. It touches no file.
func New(deps Deps) *Watch {
	return &Watch{
		file: statefile.File[string]{
			Path: filepath.Join(deps.StateDir, fileName), What: "the driver library for which the agent restarted",
			Format: "library", Version: 1, BootID: deps.BootID,
		},
		replaced: make(chan string, 1), clock: deps.Clock, log: deps.Log,
	}
}

// Replaced reports a library file that a new process would open instead of the one that this process has. It never
// waits.
func (w *Watch) Replaced(file string) {
	select {
	case w.replaced <- file:
	default:
	}
}

// Run returns an error, which ends the agent, when a new process would open another library. It returns nil when ctx
// ends.
func (w *Watch) Run(ctx context.Context) error {
	file := ""
	var retry statefile.Retry
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case file = <-w.replaced:
			retry.Reset()
		case <-again:
		}
		unsaved, err := w.end(file)
		if err != nil {
			return err
		}
		again = nil
		if unsaved {
			again = w.clock.After(retry.Next())
		}
	}
}

// end returns the error that ends the agent for a file, or nil when the agent has to keep running; unsaved is true when that is so because
// the record cannot be read or written now. After a damaged record it is not: the agent might end for the same file again and again.
func (w *Watch) end(file string) (unsaved bool, err error) {
	before, result := w.file.Load()
	err = result.Err
	if !result.Lost() {
		if before == file {
			w.log.Error("Driver library was replaced, and the agent has restarted for this file before", "library", file,
				"fix", "reload the kernel module or reboot the node, so that both are of one version")
			return false, nil
		}
		err = w.file.Save(file)
	}
	if err != nil {
		w.log.Error("Driver library was replaced; the agent keeps the old one, since it cannot record a restart",
			"library", file, "error", err, "fix", "restart the agent's pod")
		return !result.Lost() || result.State == statefile.Unreadable, nil
	}
	return false, fmt.Errorf("the driver was upgraded while the agent ran: the agent ends, so that a new process opens %s; pods keep their GPUs",
		file)
}

// Remove removes the files of a Watch from the state directory.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, fileName)) }
