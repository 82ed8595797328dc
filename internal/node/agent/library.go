package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// libraryFile remembers for which file of the driver's library an agent ended itself.
const libraryFile = "library.json"

// libraryWatch ends the agent when the driver was upgraded while it ran: a process can load NVML only once, so the new library
// needs a new process. It does so once for each file, so that a driver that is broken for another reason does not make the
// agent restart for ever.
type libraryWatch struct {
	file     statefile.File[string]
	replaced chan string
	log      *slog.Logger
}

func newLibraryWatch(stateDir, bootID string, log *slog.Logger) *libraryWatch {
	return &libraryWatch{
		file: statefile.File[string]{
			Path: filepath.Join(stateDir, libraryFile), What: "the driver library for which the agent restarted",
			Format: "library", Version: 1, BootID: bootID,
		},
		replaced: make(chan string, 1), log: log,
	}
}

// note tells of a library file that a new process would open instead of the one that this process has; it does not block.
func (l *libraryWatch) note(file string) {
	select {
	case l.replaced <- file:
	default:
	}
}

// run returns an error, which ends the agent, when a new process would open another library.
func (l *libraryWatch) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case file := <-l.replaced:
			before, result := l.file.Load()
			switch {
			case result.Lost():
				l.log.Error("the driver's library was replaced, and the agent does not restart for it, since it cannot remember that it did",
					"library", file, "error", result.Err, "fix", "restart the agent's pod")
			case before == file:
				l.log.Error("the driver's library was replaced, and the agent has restarted for this file before", "library", file,
					"fix", "reload the kernel module or reboot the node, so that both are of one version")
			default:
				if err := l.file.Save(file); err != nil {
					l.log.Error("the driver's library was replaced, and the agent does not restart for it, since it cannot remember that it did",
						"library", file, "error", err, "fix", "restart the agent's pod")
					continue
				}
				return fmt.Errorf("the driver was upgraded while the agent ran: the agent ends, so that a new process opens %s; pods keep their GPUs", file)
			}
		}
	}
}
