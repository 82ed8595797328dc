package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// entry is one file of the tree: a regular file, a symbolic link (Target), a hard link to a file of the tree that is no
// entry (Same), or a character device (Device). Folders follow from the paths. With Base, a file of the tree that is no
// entry, the content follows that of Base.
type entry struct {
	Path    string
	Mode    fs.FileMode
	Content []byte
	Target  string
	Same    string
	Base    string
	Device  *deviceNumber
}

type deviceNumber struct {
	Major uint32
	Minor uint32
}

// treeRecord is tree.json: the files that the tree contains, so that obsolete files can be removed without touching
// foreign ones. Digest is empty while an update is in progress.
type treeRecord struct {
	Digest string   `json:"digest"`
	Paths  []string `json:"paths"`
}

// treeBuilder collects entries.
type treeBuilder struct{ entries []entry }

func (b *treeBuilder) file(name, content string) {
	b.entries = append(b.entries, entry{Path: name, Mode: 0o444, Content: []byte(content)})
}

func (b *treeBuilder) program(name, content string) {
	b.entries = append(b.entries, entry{Path: name, Mode: 0o755, Content: []byte(content)})
}

func (b *treeBuilder) link(name, target string) {
	b.entries = append(b.entries, entry{Path: name, Mode: fs.ModeSymlink, Target: target})
}

// same adds a hard link: the file keeps its identity while the driver comes and goes.
func (b *treeBuilder) same(name, file string) {
	b.entries = append(b.entries, entry{Path: name, Same: file})
}

func (b *treeBuilder) node(name string, mode fs.FileMode, major, minor uint32) {
	b.entries = append(b.entries, entry{Path: name, Mode: mode, Device: &deviceNumber{Major: major, Minor: minor}})
}

// tree returns everything below the root, sorted by path: a pure function of the machine and its state.
func tree(hw *hardware, st *state) []entry {
	hw = hw.with(st)
	b := &treeBuilder{}
	addSystem(b, hw)
	addPCI(b, hw, st)
	b.file("proc/devices", hw.procDevices(st))
	addExtras(b, hw, st)
	addModule(b, hw, st)
	if !st.DriverGone {
		addDriverFiles(b, hw, st)
		addDriverProc(b, hw, st)
		if hw.NodesError == "" {
			addDeviceNodes(b, hw, st)
			addOpeners(b, hw, st)
		}
	}
	slices.SortFunc(b.entries, func(x, y entry) int { return strings.Compare(x.Path, y.Path) })
	return b.entries
}

func treeDigest(entries []entry) string {
	sum := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(sum, "%s\x00%o\x00%s\x00%x\x00", e.Path, e.Mode, e.Target+"\x00"+e.Same+"\x00"+e.Base, sha256.Sum256(e.Content))
		if e.Device != nil {
			fmt.Fprintf(sum, "%d:%d\x00", e.Device.Major, e.Device.Minor)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// treeBehind reports whether the tree differs from the given state, as after a crash.
func treeBehind(root string, hw *hardware, st *state) bool {
	var record treeRecord
	return readJSON(filepath.Join(root, treeFile), &record) != nil || record.Digest != treeDigest(tree(hw, st))
}

// syncTree brings the tree in line with the state. It can be interrupted at any point and repeated. The caller holds
// the lock.
func syncTree(root string, hw *hardware, st *state) error {
	wanted := tree(hw, st)
	digest := treeDigest(wanted)
	recordPath := filepath.Join(root, treeFile)
	var old treeRecord
	if err := readJSON(recordPath, &old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read record of the file tree: %w", err)
	}
	if old.Digest == digest {
		return nil
	}
	paths := make([]string, len(wanted))
	for i, e := range wanted {
		paths[i] = e.Path
	}
	union := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(paths), old.Paths...))))
	if err := writeJSON(recordPath, treeRecord{Paths: union}); err != nil {
		return err
	}
	top, err := openTree(root)
	if err != nil {
		return err
	}
	defer top.close()
	top.fresh = len(old.Paths) == 0
	for _, name := range union {
		if _, keep := slices.BinarySearch(paths, name); !keep {
			if err := removeEntry(top.top, name); err != nil {
				return fmt.Errorf("remove %s from the file tree: %w", name, err)
			}
		}
	}
	for _, e := range wanted {
		if err := top.write(e); err != nil {
			return fmt.Errorf("write %s in the file tree: %w", e.Path, err)
		}
	}
	if err := removeOtherFiles(root, hw.with(st)); err != nil {
		return err
	}
	return writeJSON(recordPath, treeRecord{Digest: digest, Paths: paths})
}

// treeRoot is the root during an update. It keeps folders open, because walking down from the root for each of several
// hundred files would take most of the time.
type treeRoot struct {
	top     *os.Root
	folders map[string]*os.Root
	// fresh is true while the machine is created: it has no readers yet, so files need not appear atomically.
	fresh bool
}

func openTree(root string) (*treeRoot, error) {
	top, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open file tree: %w", err)
	}
	return &treeRoot{top: top, folders: map[string]*os.Root{".": top}}, nil
}

func (t *treeRoot) close() {
	for _, folder := range t.folders {
		folder.Close()
	}
}

// folder opens a folder and creates it if it is missing.
func (t *treeRoot) folder(name string) (*os.Root, error) {
	if folder, ok := t.folders[name]; ok {
		return folder, nil
	}
	above, err := t.folder(path.Dir(name))
	if err != nil {
		return nil, err
	}
	if err := above.Mkdir(path.Base(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	folder, err := above.OpenRoot(path.Base(name))
	if err != nil {
		return nil, err
	}
	t.folders[name] = folder
	return folder, nil
}

// write replaces one entry atomically: readers see the old or the new content.
func (t *treeRoot) write(e entry) error {
	folder, err := t.folder(path.Dir(e.Path))
	if err != nil {
		return err
	}
	name := path.Base(e.Path)
	if t.fresh {
		if err := t.makeEntry(folder, name, e); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if t.sameEntry(folder, name, e) {
		return nil
	}
	temporary := "." + name + ".new"
	err = t.makeEntry(folder, temporary, e)
	if errors.Is(err, fs.ErrExist) { // left by a crash
		if err = folder.Remove(temporary); err == nil {
			err = t.makeEntry(folder, temporary, e)
		}
	}
	if err != nil {
		return err
	}
	return folder.Rename(temporary, name)
}

func (t *treeRoot) makeEntry(folder *os.Root, name string, e entry) error {
	switch {
	case e.Target != "":
		return folder.Symlink(e.Target, name)
	case e.Same != "":
		return t.hardLink(e.Same, folder, name)
	case e.Device != nil:
		return makeNode(folder, name, e.Mode, *e.Device)
	}
	wanted, err := t.contentOf(e)
	if err != nil {
		return err
	}
	file, err := folder.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(wanted)
	return errors.Join(err, file.Chmod(e.Mode), file.Close())
}

// contentOf returns the content of a regular file.
func (t *treeRoot) contentOf(e entry) ([]byte, error) {
	if e.Base == "" {
		return e.Content, nil
	}
	base, err := t.top.ReadFile(e.Base)
	return append(base, e.Content...), err
}

// hardLink lets a name in a folder be another file of the tree. os.Root links only below itself, and the folder is open.
func (t *treeRoot) hardLink(file string, folder *os.Root, name string) error {
	from, err := t.top.Open(path.Dir(file))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := folder.Open(".")
	if err != nil {
		return err
	}
	defer to.Close()
	if err := unix.Linkat(int(from.Fd()), path.Base(file), int(to.Fd()), name, 0); err != nil {
		return &os.LinkError{Op: "link", Old: file, New: name, Err: err}
	}
	return nil
}

func makeNode(root *os.Root, name string, mode fs.FileMode, number deviceNumber) error {
	folder, err := root.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	dev := int(unix.Mkdev(number.Major, number.Minor))
	if err := unix.Mknodat(int(folder.Fd()), name, unix.S_IFCHR|uint32(mode.Perm()), dev); err != nil {
		return fmt.Errorf("make device node: %w", err)
	}
	return root.Chmod(name, mode.Perm()) // mknod applies the umask
}

func (t *treeRoot) sameEntry(folder *os.Root, name string, e entry) bool {
	info, err := folder.Lstat(name)
	if err != nil {
		return false
	}
	switch {
	case e.Target != "":
		target, err := folder.Readlink(name)
		return err == nil && target == e.Target
	case e.Same != "":
		file, err := t.top.Lstat(e.Same)
		return err == nil && os.SameFile(file, info)
	case e.Device != nil:
		stat, ok := info.Sys().(*syscall.Stat_t)
		return ok && info.Mode()&fs.ModeCharDevice != 0 && info.Mode().Perm() == e.Mode.Perm() &&
			stat.Rdev == unix.Mkdev(e.Device.Major, e.Device.Minor)
	default:
		wanted, err := t.contentOf(e)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != e.Mode.Perm() || info.Size() != int64(len(wanted)) {
			return false
		}
		content, err := folder.ReadFile(name)
		return err == nil && bytes.Equal(content, wanted)
	}
}

// removeEntry removes a file, and the folders that become empty.
func removeEntry(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
		if root.Remove(folder) != nil { // not empty, or already removed
			return nil
		}
	}
	return nil
}
