package migapply

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	// JournalFile and LockFile are the names in Deps.Dir. The journal has the form of internal/node/statefile.
	JournalFile = "mig-change.json"
	LockFile    = "mig-change.lock"

	journalFormat  = "berth-mig-change"
	journalVersion = 1
)

// journal is what is under way.
type journal struct {
	Generation int64 `json:"generation"`
	// Owner is the agent that carries it out, or did when it died.
	Owner string `json:"owner"`
	// NodeUID is the UID of the Node that it belongs to; empty when that was not known. The file's envelope has it.
	NodeUID string `json:"-"`
	// Cards are in the order of their UUID.
	Cards []entry `json:"cards"`
}

// entry is a card under way.
type entry struct {
	UUID   gpu.UUID   `json:"uuid"`
	Wanted mig.Wanted `json:"wanted"`
	// Source says who wanted it.
	Source string `json:"source,omitempty"`
	// Plan is what was planned at the start, for people: what is left is planned anew.
	Plan mig.GPUPlan `json:"plan"`
}

// check refuses a journal that makes no sense.
func (j journal) check() error {
	if j.Generation < 1 {
		return fmt.Errorf("generation %d", j.Generation)
	}
	for i, card := range j.Cards {
		if card.UUID == "" || i > 0 && j.Cards[i-1].UUID >= card.UUID {
			return fmt.Errorf("card %q is out of order", card.UUID)
		}
		for profile, count := range card.Wanted.Devices {
			if profile == "" || count < 0 || !card.Wanted.Enabled {
				return fmt.Errorf("card %s cannot have %d of %q", card.UUID, count, profile)
			}
		}
	}
	return nil
}

func (j *journal) put(e entry) {
	j.drop(e.UUID)
	j.Cards = append(j.Cards, e)
	slices.SortFunc(j.Cards, func(a, b entry) int { return strings.Compare(string(a.UUID), string(b.UUID)) })
}

func (j *journal) drop(card gpu.UUID) {
	j.Cards = slices.DeleteFunc(j.Cards, func(e entry) bool { return e.UUID == card })
}

// errBusy says that another agent holds the lock.
var errBusy = errors.New("another agent of this node is changing its GPUs")

// desk is the folder with the journal, locked.
type desk struct {
	root *os.Root
	dir  string
	lock *os.File
	// generation is the highest that was given out.
	generation int64
}

// openDesk takes the lock; it does not wait for it.
func openDesk(dir string) (*desk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	lock, err := root.OpenFile(LockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	d := &desk{root: root, dir: dir, lock: lock}
	// Of the open file, not of the process, so that two agents in one process exclude each other too.
	err = unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
	switch {
	case errors.Is(err, unix.EAGAIN):
		d.close()
		return nil, errBusy
	case err != nil:
		d.close()
		return nil, fmt.Errorf("lock %s/%s: %w", dir, LockFile, err)
	}
	text, err := io.ReadAll(io.LimitReader(lock, 64))
	if err != nil {
		d.close()
		return nil, err
	}
	// A text that makes no sense counts as 0; the journal's own generation counts too.
	d.generation, _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return d, nil
}

// close gives the lock back.
func (d *desk) close() {
	d.lock.Close()
	d.root.Close()
}

// next is a generation that nobody had.
func (d *desk) next() (int64, error) {
	next := max(d.generation, 0) + 1
	// Fixed width, so that one number overwrites another entirely.
	if _, err := d.lock.WriteAt(fmt.Appendf(nil, "%019d\n", next), 0); err != nil {
		return 0, err
	}
	if err := d.lock.Sync(); err != nil {
		return 0, err
	}
	d.generation = next
	return next, nil
}

// file is the journal's file. It is of no boot: what was under way is brought to its end after one.
func (d *desk) file() statefile.File[journal] {
	return statefile.File[journal]{
		Path: filepath.Join(d.dir, JournalFile), What: "the MIG change under way", Format: journalFormat, Version: journalVersion, Check: journal.check,
	}
}

// read gives the journal; one without cards when there is none, or none that can be used. That one is kept beside; if it
// cannot be, it counts as unreadable, so that it is not overwritten.
func (d *desk) read() (journal, statefile.Result) {
	j, result := d.file().Read()
	if result.State == statefile.Damaged || result.State == statefile.Newer {
		_, kept := d.file().Load()
		if _, err := d.root.Lstat(JournalFile); err == nil {
			kept = statefile.Result{State: statefile.Unreadable, Err: fmt.Errorf("%w; it could not be kept as %s", result.Err, d.file().Backup())}
		}
		result = kept
	}
	j.NodeUID = result.NodeUID
	d.generation = max(d.generation, j.Generation)
	return j, result
}

// write replaces the journal: after a crash, of the machine too, the old or the new one
// is there. Without cards there is none.
func (d *desk) write(j journal, torn func() error) error {
	if len(j.Cards) == 0 {
		if err := d.root.Remove(JournalFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return d.sync()
	}
	file := d.file()
	file.NodeUID = j.NodeUID
	file.Fault = func(at statefile.Step) error {
		if at != statefile.StepTorn {
			return nil
		}
		return torn()
	}
	return file.Save(j)
}

// sync makes names last.
func (d *desk) sync() error {
	folder, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
