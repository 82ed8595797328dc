package nvidia

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const libraryName = "libnvidia-ml.so.1"

// OpenLibrary returns the NVML of a driver root ("/" for the host itself). Each Init looks for the library until it is found,
// so that it may be installed later; Init returns ERROR_LIBRARY_NOT_FOUND before.
//
// A library that was found stays mapped for the life of the process: go-nvml's calls are bound to its address at their first
// use. A driver that is upgraded to another version needs a new process and returns LIB_RM_VERSION_MISMATCH until then; see
// Deps.LibraryReplaced.
func OpenLibrary(driverRoot string) nvml.Interface {
	if driverRoot == "" {
		driverRoot = "/"
	}
	return &library{Interface: nvml.New(), root: filepath.Clean(driverRoot)}
}

// library is an NVML that Init loads.
type library struct {
	// Interface is replaced only while it is not initialized.
	nvml.Interface
	root string

	mu    sync.Mutex
	users int
	found bool
	// opened is the file that was found.
	opened libraryIdentity
	// unusable says why the files that the last Init found cannot be used; empty when it found none.
	unusable string
}

// libraryIdentity identifies a version of a file.
type libraryIdentity struct {
	path  string
	inode uint64
	size  int64
	mtime int64
}

func (i libraryIdentity) String() string {
	return fmt.Sprintf("%s (inode %d, %d bytes, of %s)", i.path, i.inode, i.size, time.Unix(0, i.mtime).UTC().Format(time.RFC3339Nano))
}

// identifyLibrary finds the file that a new process would open; false when there is none in the directories that are searched.
func identifyLibrary(root string) (libraryIdentity, bool) {
	for _, file := range libraryFiles(root) {
		if !filepath.IsAbs(file) {
			continue // the dynamic loader finds the same file in one of the directories
		}
		if target, err := filepath.EvalSymlinks(file); err == nil {
			file = target
		}
		var stat syscall.Stat_t
		if syscall.Stat(file, &stat) == nil {
			return libraryIdentity{path: file, inode: stat.Ino, size: stat.Size, mtime: stat.Mtim.Nano()}, true
		}
	}
	return libraryIdentity{}, false
}

// Replaced returns the file that a new process would open, if that is another one than this process has loaded.
func (l *library) Replaced() (file string, replaced bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, ok := identifyLibrary(l.root)
	if !l.found || !ok || now == l.opened || l.opened == (libraryIdentity{}) {
		return "", false
	}
	return now.String(), true
}

// Init looks for the library unless it was found before.
func (l *library) Init() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.found {
		l.find()
	}
	if !l.found {
		return nvml.ERROR_LIBRARY_NOT_FOUND
	}
	ret := l.Interface.Init()
	if ret == nvml.SUCCESS {
		l.users++
	}
	return ret
}

// find opens the first file that is a library of NVML. The caller holds mu.
func (l *library) find() {
	var reasons []string
	for _, file := range libraryFiles(l.root) {
		candidate := nvml.New(nvml.WithLibraryPath(file))
		err := l.checkComplete(file)
		if err == nil {
			err = openPinned(file)
		}
		if err == nil {
			l.Interface, l.found, l.unusable = candidate, true, ""
			l.opened, _ = identifyLibrary(l.root)
			return
		}
		if filepath.IsAbs(file) { // another name is looked up by the dynamic loader, and may not exist
			reasons = append(reasons, err.Error())
		}
	}
	l.unusable = strings.Join(reasons, "; ")
}

// checkComplete returns an error for a file that is not completely there, as while a driver is installed: the dynamic loader
// would end the process with SIGBUS. A name that the loader looks up stands for the first file in the directories that are
// searched.
func (l *library) checkComplete(name string) error {
	if !filepath.IsAbs(name) {
		found, ok := identifyLibrary(l.root)
		if !ok {
			return nil
		}
		name = found.path
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: it is not a regular file", name)
	}
	file, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("%s: it is not a complete ELF file: %w", name, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	for _, segment := range file.Progs {
		if need := segment.Off + segment.Filesz; segment.Type == elf.PT_LOAD && need > uint64(info.Size()) {
			return fmt.Errorf("%s: it ends after %d of %d bytes", name, info.Size(), need)
		}
	}
	return nil
}

// openPinned loads a library for the life of the process. go-nvml ends the process on a call of a function that a library
// lacks, so one without the first is no library.
func openPinned(file string) error {
	const first = "nvmlInit_v2"
	pin := dl.New(file, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := pin.Open(); err != nil {
		return err
	}
	if err := pin.Lookup(first); err != nil {
		return fmt.Errorf("%s: it has no function %s", file, first)
	}
	return nil
}

// Unusable says which files were found and why they cannot be loaded; empty when there is no file, or one is loaded.
func (l *library) Unusable() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unusable
}

// Shutdown does nothing while the library is not initialized: go-nvml would end the process.
func (l *library) Shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	l.users--
	return l.Interface.Shutdown()
}

// libraryFiles lists where the library may be: for the host, what the dynamic loader finds, then the directories that
// distributions and NVIDIA's driver images use.
func libraryFiles(root string) []string {
	var files []string
	if root == "/" {
		files = append(files, libraryName)
	}
	for _, dir := range driverFiles().LibraryFolders {
		file := filepath.Join(root, dir, libraryName)
		if _, err := os.Stat(file); err == nil {
			files = append(files, file)
		}
	}
	return files
}
