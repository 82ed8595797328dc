package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/node/statefile"
)

// Step names a moment in the writing of the file at which the program may die.
type Step string

// The steps of a write, in order. Until StepRename the old file is in place, after it the new one.
const (
	StepLock   Step = "lock"   // before anything
	StepCreate Step = "create" // the temporary file exists, empty
	StepTorn   Step = "torn"   // half of it is written
	StepClose  Step = "close"  // all of it is written
	StepRename Step = "rename" // it has the file's name
	// StepLead is in TakeOver: the lock file names this ledger as the writer, which has written nothing yet. The writes
	// of the file follow it.
	StepLead Step = "lead"
)

// store is the file with its lock. Its lock file has the epoch of the writer in decimal; byte ranges of it are locked
// as a mutex and to show that a process runs. They are open-file-description locks: they end with the process, and also
// exclude two ledgers of one process.
type store struct {
	root  *os.Root
	name  string
	path  string
	lock  *os.File
	epoch atomic.Int64 // 0: has never led
	// superseded is set when a higher epoch was seen.
	superseded atomic.Bool
	fault      func(Step) error
	buf        []byte
}

// lockTimeout bounds the wait for the lock of another agent. Its holder keeps it for one write, unless it is stopped.
const (
	lockTimeout = time.Second
	lockStep    = 2 * time.Millisecond
)

// errLocked means that another process has the lock and does not release it.
var errLocked = errors.New("another process has held the lock for " + lockTimeout.String() + "; if an agent is stopped (state T in ps), end or continue it")

// Byte ranges in the lock file, far behind its text.
const (
	mutexByte = int64(1) << 20
	lifeByte  = int64(1) << 30 // plus the epoch
)

func openStore(path string, fault func(Step) error) (*store, error) {
	dir, name := filepath.Split(path)
	if name == "" {
		return nil, fmt.Errorf("the path %q names no file", path)
	}
	if err := os.MkdirAll(filepath.Clean(dir), 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	lock, err := statefile.OpenRegular(root, name+".lock")
	if err != nil {
		root.Close()
		return nil, err
	}
	if fault == nil {
		fault = func(Step) error { return nil }
	}
	return &store{root: root, name: name, path: path, lock: lock, fault: fault}, nil
}

func (s *store) close() error { return errors.Join(s.lock.Close(), s.root.Close()) }

func (s *store) bakPath() string { return s.path + ".bak" }

func (s *store) leads() bool { return s.epoch.Load() > 0 && !s.superseded.Load() }

func (s *store) setLock(cmd int, kind int16, at int64) error {
	for {
		err := unix.FcntlFlock(s.lock.Fd(), cmd, &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: at, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// locked runs do while no other agent is inside locked. The wait for another one is bounded by lockTimeout.
func (s *store) locked(do func() error) error {
	for until := time.Now().Add(lockTimeout); ; time.Sleep(lockStep) {
		err := s.setLock(unix.F_OFD_SETLK, unix.F_WRLCK, mutexByte)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("lock %s.lock: %w", s.path, err)
		}
		if time.Now().After(until) {
			return fmt.Errorf("lock %s.lock: %w", s.path, errLocked)
		}
	}
	err := do()
	if unlock := s.setLock(unix.F_OFD_SETLK, unix.F_UNLCK, mutexByte); unlock != nil && err == nil {
		err = fmt.Errorf("unlock %s.lock: %w", s.path, unlock)
	}
	return err
}

// takeOver loads the file and becomes the writer, with no other write in between. When the file cannot be read, the
// writer does not change. It does nothing for the writer.
func (s *store) takeOver(load func() (func() error, error)) error {
	return s.locked(func() error {
		if current, err := s.readEpoch(); err == nil && s.leads() && current == s.epoch.Load() {
			return nil
		}
		apply, err := load()
		if err != nil {
			return err
		}
		if err := s.lead(); err != nil {
			return fmt.Errorf("take over %s.lock: %w", s.path, err)
		}
		err = s.fault(StepLead)
		if err == nil {
			err = apply()
		}
		if err != nil {
			s.superseded.Store(true) // The content of the file must not be overwritten.
			return err
		}
		return nil
	})
}

func (s *store) lead() error {
	current, err := s.readEpoch()
	if err != nil {
		return err
	}
	next := current + 1
	// It is locked already only if the lock file was truncated while agents ran.
	for errors.Is(s.setLock(unix.F_OFD_SETLK, unix.F_WRLCK, lifeByte+next), unix.EAGAIN) {
		next++
	}
	if mine := s.epoch.Load(); mine > 0 {
		_ = s.setLock(unix.F_OFD_SETLK, unix.F_UNLCK, lifeByte+mine)
	}
	// Fixed width, so that one number overwrites another entirely.
	if _, err := s.lock.WriteAt(fmt.Appendf(nil, "%019d\n", next), 0); err != nil {
		return err
	}
	s.epoch.Store(next)
	s.superseded.Store(false)
	return nil
}

// follows reports whether this has never been the writer.
func (s *store) follows() bool { return s.epoch.Load() == 0 }

// abandoned reports whether the process of the last writer has ended, or there was none. It is false when that cannot be
// read.
func (s *store) abandoned() bool {
	current, err := s.readEpoch()
	if err != nil {
		return false
	}
	probe := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: lifeByte + current, Len: 1}
	if err := unix.FcntlFlock(s.lock.Fd(), unix.F_OFD_GETLK, &probe); err != nil {
		return false
	}
	return probe.Type == unix.F_UNLCK
}

// readEpoch returns 0 for an invalid text: the next writer starts from there.
func (s *store) readEpoch() (int64, error) {
	var text [20]byte
	n, err := s.lock.ReadAt(text[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	epoch, err := strconv.ParseInt(strings.TrimSpace(string(text[:n])), 10, 64)
	if err != nil || epoch < 0 || epoch > 1<<50 {
		return s.epoch.Load(), nil
	}
	return epoch, nil
}

// notRegular is what read returns in place of the content of a folder, a pipe or a link. No ledger has it.
const notRegular = "not a regular file"

// read returns the file's content; nil without an error when there is none.
func (s *store) read() ([]byte, error) {
	info, err := s.root.Lstat(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return []byte(notRegular), nil
	}
	file, err := s.root.OpenFile(s.name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	blob, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.path, err)
	}
	// Cut off, a file that is too large reads as one that ends in the middle.
	return blob[:min(len(blob), maxFile)], nil
}

// keep renames the file.
func (s *store) keep() error { return s.root.Rename(s.name, s.name+".bak") }

// write replaces the file's content, unless another agent leads.
func (s *store) write(content []byte) error {
	if err := s.fault(StepLock); err != nil {
		return err
	}
	return s.locked(func() error {
		if err := s.confirm(); err != nil {
			return err
		}
		if err := s.replace(content); err != nil {
			return fmt.Errorf("write %s: %w", s.path, err)
		}
		return nil
	})
}

// confirm fails with ErrSuperseded when another agent leads.
func (s *store) confirm() error {
	current, err := s.readEpoch()
	if err != nil {
		return fmt.Errorf("read %s.lock: %w", s.path, err)
	}
	if current > s.epoch.Load() {
		s.superseded.Store(true)
		return ErrSuperseded
	}
	return nil
}

func (s *store) replace(content []byte) error {
	temporary := s.name + ".tmp"
	file, err := statefile.OpenRegular(s.root, temporary)
	if err != nil {
		return err
	}
	half := len(content) / 2
	err = errors.Join(file.Truncate(0), s.fault(StepCreate), fill(file, content[:half]))
	if err == nil {
		err = errors.Join(s.fault(StepTorn), fill(file, content[half:]))
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = s.fault(StepClose)
	}
	if err != nil {
		return err // the next write overwrites the rest
	}
	if err := s.root.Rename(temporary, s.name); err != nil {
		return err
	}
	return s.fault(StepRename)
}

func fill(file *os.File, content []byte) error {
	_, err := file.Write(content)
	return err
}
