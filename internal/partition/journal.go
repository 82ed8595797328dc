package partition

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/mig"
)

const (
	// JournalFile and LockFile are the names in Deps.Dir. While it is written the journal's name ends in
	// .tmp, and one that made no sense is kept as .bak.
	JournalFile = "mig-change.json"
	LockFile    = "mig-change.lock"

	journalFormat  = "berth-mig-change"
	journalVersion = 1
	// maxJournal bounds the file in bytes; 16 cards with seven instances each have about 30 KiB.
	maxJournal = 4 << 20
)

// journal is what is under way.
type journal struct {
	Format     string `json:"format"`
	Version    int    `json:"version"`
	Generation int64  `json:"generation"`
	// Owner is the agent that carries it out, or did when it died.
	Owner string `json:"owner"`
	// NodeUID is the UID of the Node that it belongs to; empty when that was not known.
	NodeUID string `json:"nodeUID,omitempty"`
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
	Plan mig.CardPlan `json:"plan"`
}

// parseJournal reads a journal's content.
func parseJournal(blob []byte) (journal, error) {
	var j journal
	decoder := json.NewDecoder(bytes.NewReader(blob))
	if err := decoder.Decode(&j); err != nil {
		return journal{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return journal{}, errors.New("something follows the journal")
	}
	switch {
	case j.Format != journalFormat:
		return journal{}, fmt.Errorf("format %q is no MIG journal", j.Format)
	case j.Version > journalVersion:
		return journal{}, &versionError{j.Version}
	case j.Version < 1 || j.Generation < 1:
		return journal{}, fmt.Errorf("version %d, generation %d", j.Version, j.Generation)
	}
	for i, card := range j.Cards {
		if card.UUID == "" || i > 0 && j.Cards[i-1].UUID >= card.UUID {
			return journal{}, fmt.Errorf("card %q is out of order", card.UUID)
		}
		for profile, count := range card.Wanted.Devices {
			if profile == "" || count < 0 || !card.Wanted.Enabled {
				return journal{}, fmt.Errorf("card %s cannot have %d of %q", card.UUID, count, profile)
			}
		}
	}
	return j, nil
}

type versionError struct{ version int }

func (e *versionError) Error() string {
	return fmt.Sprintf("format version %d is newer than %d, which is the newest that this agent knows", e.version, journalVersion)
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

// read gives the journal; one without cards when there is none.
func (d *desk) read() (journal, error) {
	file, err := d.root.Open(JournalFile)
	if errors.Is(err, fs.ErrNotExist) {
		return journal{}, nil
	}
	if err != nil {
		return journal{}, &unreadableError{err}
	}
	defer file.Close()
	blob, err := io.ReadAll(io.LimitReader(file, maxJournal+1))
	if err != nil {
		return journal{}, &unreadableError{err}
	}
	if len(blob) > maxJournal {
		return journal{}, fmt.Errorf("more than %d bytes", maxJournal)
	}
	j, err := parseJournal(blob)
	if err == nil {
		d.generation = max(d.generation, j.Generation)
	}
	return j, err
}

// unreadableError is one of the disk, as opposed to what the file says.
type unreadableError struct{ error }

func (e *unreadableError) Unwrap() error { return e.error }

// keep puts the journal out of the way.
func (d *desk) keep() error { return d.root.Rename(JournalFile, JournalFile+".bak") }

// write replaces the journal: after a crash, of the machine too, the old or the new one
// is there. Without cards there is none.
func (d *desk) write(j journal, torn func() error) error {
	if len(j.Cards) == 0 {
		if err := d.root.Remove(JournalFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return d.sync()
	}
	blob, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return err
	}
	temporary := JournalFile + ".tmp"
	file, err := d.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	half := len(blob) / 2
	_, err = file.Write(blob[:half])
	if err == nil {
		err = torn()
	}
	if err == nil {
		_, err = file.Write(append(blob[half:], '\n'))
	}
	if err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err // what is left is overwritten by the next write
	}
	if err := d.root.Rename(temporary, JournalFile); err != nil {
		return err
	}
	return d.sync()
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
