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

// journal has the changes in progress.
type journal struct {
	Generation int64 `json:"generation"`
	// Owner is the agent that carries out the changes, or did before it ended.
	Owner string `json:"owner"`
	// NodeUID is the UID of the Node that the journal belongs to; empty when that was not known. It is in the file's
	// envelope.
	NodeUID string `json:"-"`
	// GPUs are in the order of their UUID; the name in the file is that of version 1 of the format.
	GPUs []entry `json:"cards"`
}

// entry is a GPU that is being changed.
type entry struct {
	UUID   gpu.UUID   `json:"uuid"`
	Wanted mig.Wanted `json:"wanted"`
	// Source names who wanted it.
	Source string `json:"source,omitempty"`
	Claims bool   `json:"claims,omitempty"`
	// Plan is what was planned at the start, for readers of the file; the remaining work is planned again.
	Plan mig.GPUPlan `json:"plan"`
}

// check returns an error for inconsistent content.
func (j journal) check() error {
	if j.Generation < 1 {
		return fmt.Errorf("generation %d", j.Generation)
	}
	for i, e := range j.GPUs {
		if e.UUID == "" || i > 0 && j.GPUs[i-1].UUID >= e.UUID {
			return fmt.Errorf("GPU %q is out of order", e.UUID)
		}
		if err := e.check(); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error for a wanted state that no GPU can have.
func (e *entry) check() error {
	for profile, count := range e.Wanted.Devices {
		if profile == "" || count < 0 || !e.Wanted.Enabled {
			return fmt.Errorf("GPU %s cannot have %d of %q", e.UUID, count, profile)
		}
	}
	for _, one := range e.Wanted.Placed {
		if one.Profile == "" || one.Start < 0 || one.Size < 1 || !e.Wanted.Enabled || len(e.Wanted.Devices) > 0 {
			return fmt.Errorf("GPU %s cannot have %q at %d:%d", e.UUID, one.Profile, one.Start, one.Size)
		}
	}
	return nil
}

func (j *journal) put(e entry) {
	j.drop(e.UUID)
	j.GPUs = append(j.GPUs, e)
	slices.SortFunc(j.GPUs, func(a, b entry) int { return strings.Compare(string(a.UUID), string(b.UUID)) })
}

func (j *journal) drop(id gpu.UUID) {
	j.GPUs = slices.DeleteFunc(j.GPUs, func(e entry) bool { return e.UUID == id })
}

// errBusy means that another agent holds the lock.
var errBusy = errors.New("another agent of this node is changing its GPUs")

// store is the folder with the journal, locked.
type store struct {
	root *os.Root
	dir  string
	lock *os.File
	// generation is the highest one so far.
	generation int64
}

// openStore acquires the lock without waiting for it.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	lock, err := statefile.OpenRegular(root, LockFile)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	d := &store{root: root, dir: dir, lock: lock}
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
	// A text that is not a number counts as 0; the journal's own generation counts too.
	d.generation, _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return d, nil
}

// close releases the lock.
func (d *store) close() {
	d.lock.Close()
	d.root.Close()
}

// useStore opens the store, or counts one more user of it. Each user calls closeStore.
func (p *Partition) useStore() error {
	p.storeMu.Lock()
	defer p.storeMu.Unlock()
	if p.store == nil {
		store, err := openStore(p.deps.Dir)
		if err != nil {
			return err
		}
		p.store = store
	}
	p.users++
	return nil
}

// closeStore closes the store when nothing else uses it.
func (p *Partition) closeStore() {
	p.storeMu.Lock()
	defer p.storeMu.Unlock()
	if p.users--; p.users == 0 {
		p.store.close()
		p.store = nil
	}
}

// next returns a generation that was never used.
func (d *store) next() (int64, error) {
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

// file is the journal's file. It is valid over a reboot, after which a change in progress is completed.
func (d *store) file() statefile.File[journal] {
	return statefile.File[journal]{
		Path: filepath.Join(d.dir, JournalFile), What: "the MIG change in progress", Format: journalFormat, Version: journalVersion, Check: journal.check,
	}
}

// read returns the journal; an empty one when there is none or it is invalid. An invalid file is renamed; when that
// fails it counts as unreadable, so that it is not overwritten.
func (d *store) read() (journal, statefile.Result) {
	j, result := d.file().Read()
	if result.State == statefile.Damaged || result.State == statefile.Newer {
		_, kept := d.file().Load()
		if _, err := d.root.Lstat(JournalFile); err == nil {
			kept = statefile.Result{State: statefile.Unreadable,
				Err: fmt.Errorf("%w; it could not be renamed to %s", result.Err, d.file().Backup())}
		}
		result = kept
	}
	j.NodeUID = result.NodeUID
	d.generation = max(d.generation, j.Generation)
	return j, result
}

// write replaces the journal: after a crash, also of the machine, either the old or the new one exists. Without GPUs
// the file is removed.
func (d *store) write(j journal, torn func() error) error {
	if len(j.GPUs) == 0 {
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

// sync writes changes of file names to disk.
func (d *store) sync() error {
	folder, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
