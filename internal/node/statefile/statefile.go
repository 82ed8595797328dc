package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// DefaultMax bounds a file in bytes unless File says otherwise.
const DefaultMax = 4 << 20

// backupSuffix is the suffix of the name under which an invalid file is kept.
const backupSuffix = ".bak"

// File is a state file with content of type T. It is a plain value: copies describe the same file.
type File[T any] struct {
	Path string
	// What describes the content briefly, such as "the use of each GPU"; messages begin with it.
	What string
	// Format is the name of the content's form, Version its version, from 1.
	Format  string
	Version int
	// BootID voids content that was written in another boot; empty for content that outlives a boot.
	BootID string
	// NodeUID is the UID of the Node that the content belongs to. It voids content of another Node; empty
	// when it is not known (yet), and then content of any Node is read.
	NodeUID string
	// Mark is written beside the content, for a reader that compares it; Result has it. A Berth that knows no marks ignores it.
	Mark string
	// Check refuses invalid content; nil accepts all that can be decoded.
	Check func(T) error
	// Max bounds the size in bytes; DefaultMax when zero.
	Max int64
	// Fault is called at each step of a write; an error stops the write there, as the death of the
	// process would. For tests.
	Fault func(Step) error
}

// State is the result of a read.
type State string

// The states. Only Present comes with content.
const (
	// Present: the content was read.
	Present State = "present"
	// Absent: there is no file.
	Absent State = "absent"
	// OtherBoot and OtherNode: the content is void.
	OtherBoot State = "from another boot"
	OtherNode State = "from another node"
	// Damaged: the file is not as it was written, or its content is invalid.
	Damaged State = "damaged"
	// Newer: a newer Berth wrote the file.
	Newer State = "of a newer version"
	// Unreadable: the disk could not read the file; its content is unknown.
	Unreadable State = "unreadable"
)

// Result is the result of a read without the content.
type Result struct {
	State State
	// NodeUID is the Node that the file belongs to, also when the content is invalid for that reason.
	NodeUID string
	// Mark is that of the content that was read; empty for none.
	Mark string
	// Err has the error and the fix; nil for Present, Absent, OtherBoot and OtherNode.
	Err error
}

// Lost reports whether there was content that could not be read: the caller must not continue as if there had been
// none.
func (r Result) Lost() bool { return r.Err != nil }

// Code is the code of the problem that Err is; empty without one.
func (r Result) Code() string {
	switch r.State {
	case Damaged:
		return "STATE_DAMAGED"
	case Newer:
		return "STATE_NEWER"
	case Unreadable:
		return "STATE_UNREADABLE"
	}
	return ""
}

// envelope is a file's whole content.
type envelope struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	BootID  string          `json:"bootID,omitempty"`
	NodeUID string          `json:"nodeUID,omitempty"`
	Mark    string          `json:"mark,omitempty"`
	CRC     uint32          `json:"crc32c"`
	Content json.RawMessage `json:"content"`
}

func checksum(content []byte) uint32 {
	return crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))
}

func (f File[T]) max() int64 {
	if f.Max > 0 {
		return f.Max
	}
	return DefaultMax
}

// Backup returns the path under which an invalid file is kept.
func (f File[T]) Backup() string { return f.Path + backupSuffix }

// Load reads the content for the file's writer. A file that cannot be used is moved to Backup, so that
// the next Save does not destroy it.
func (f File[T]) Load() (T, Result) {
	content, result := f.Read()
	if result.State != Damaged && result.State != Newer {
		return content, result
	}
	_, err := os.Lstat(f.Backup())
	replaced := err == nil
	if err := os.Rename(f.Path, f.Backup()); err != nil {
		result.Err = fmt.Errorf("%w; it could not be kept as %s and will be overwritten: %w", result.Err, f.Backup(), err)
		return content, result
	}
	kept := "it was kept as " + f.Backup()
	if replaced {
		kept += ", in place of an earlier one"
	}
	result.Err = fmt.Errorf("%w; %s", result.Err, kept)
	return content, result
}

// Read returns the content and changes nothing.
func (f File[T]) Read() (T, Result) {
	var none T
	blob, err := f.bytes()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return none, Result{State: Absent}
	case errors.Is(err, errNoFile):
		return none, Result{State: Damaged, Err: fmt.Errorf("read %s: %s is damaged: %w", f.What, f.Path, err)}
	case err != nil:
		return none, Result{State: Unreadable, Err: fmt.Errorf("read %s: %w (check the disk; the file was not changed)", f.What, err)}
	}
	return f.decode(blob)
}

// errNoFile is the error of a folder, a link, a pipe and all else that a writer of a state file does not make.
var errNoFile = errors.New("it is not a regular file")

// bytes reads the file, one byte more than its bound at most.
func (f File[T]) bytes() ([]byte, error) {
	// Not blocking, so that a pipe of the file's name cannot hold the agent up.
	file, err := os.OpenFile(f.Path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // A link; a socket, or a device without a driver.
		return nil, errNoFile
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	return io.ReadAll(io.LimitReader(file, f.max()+1))
}

// decode parses a file.
func (f File[T]) decode(blob []byte) (T, Result) {
	var content, none T
	damaged := func(format string, args ...any) (T, Result) {
		why := fmt.Errorf(format, args...)
		return none, Result{State: Damaged, Err: fmt.Errorf("read %s: %s is damaged: %w", f.What, f.Path, why)}
	}
	if int64(len(blob)) > f.max() {
		return damaged("it has more than %d bytes", f.max())
	}
	var read envelope
	decoder := json.NewDecoder(bytes.NewReader(blob))
	if err := decoder.Decode(&read); err != nil {
		return damaged("%w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return damaged("something follows its end")
	}
	switch {
	case read.Format != f.Format:
		return damaged("its format is %q and not %q", read.Format, f.Format)
	case read.Version > f.Version:
		// Its content, the checksum included, may have another form: no more of it is read.
		return none, Result{State: Newer, NodeUID: read.NodeUID, Err: fmt.Errorf(
			"read %s: %s has version %d and this Berth reads up to version %d (a newer Berth ran here before; its state is not used)", f.What, f.Path, read.Version, f.Version)}
	case read.Version != f.Version:
		return damaged("version %d does not exist", read.Version)
	case checksum(read.Content) != read.CRC:
		return damaged("its checksum is %d and should be %d", checksum(read.Content), read.CRC)
	case f.BootID != "" && read.BootID != f.BootID:
		return none, Result{State: OtherBoot, NodeUID: read.NodeUID}
	case f.NodeUID != "" && read.NodeUID != "" && read.NodeUID != f.NodeUID:
		return none, Result{State: OtherNode, NodeUID: read.NodeUID}
	}
	if err := json.Unmarshal(read.Content, &content); err != nil {
		return damaged("%w", err)
	}
	if f.Check != nil {
		if err := f.Check(content); err != nil {
			return damaged("%w", err)
		}
	}
	return content, Result{State: Present, NodeUID: read.NodeUID, Mark: read.Mark}
}
