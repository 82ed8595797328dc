package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const libraryName = "libnvidia-ml.so.1"

// OpenLibrary gives the real NVML of a driver root ("/" for the host itself). The
// library is looked for at each Init, so that it may be installed later; until then
// Init returns ERROR_LIBRARY_NOT_FOUND.
//
// Once found, it stays mapped for the life of the process: go-nvml's calls are bound
// to its address at their first use. A driver upgraded to another version needs a new
// process, and says LIB_RM_VERSION_MISMATCH until then; Deps.LibraryReplaced is told.
func OpenLibrary(driverRoot string) nvml.Interface {
	if driverRoot == "" {
		driverRoot = "/"
	}
	return &library{Interface: nvml.New(), root: filepath.Clean(driverRoot)}
}

// library is NVML that is looked for at Init.
type library struct {
	// Interface is replaced only while nobody has it initialised.
	nvml.Interface
	root string

	mu    sync.Mutex
	users int
	found bool
	// opened is the file that was found.
	opened libraryIdentity
}

// libraryIdentity is a version of a file.
type libraryIdentity struct {
	path        string
	inode       uint64
	size, mtime int64
}

func (i libraryIdentity) String() string {
	return fmt.Sprintf("%s (inode %d, %d bytes, of %s)", i.path, i.inode, i.size, time.Unix(0, i.mtime).UTC().Format(time.RFC3339Nano))
}

// identify finds the file that a new process would open; false when there is none in the folders that are searched.
func identifyLibrary(root string) (libraryIdentity, bool) {
	for _, file := range libraryFiles(root) {
		if !filepath.IsAbs(file) {
			continue // the dynamic loader finds the same file in one of the folders
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

// Replaced names the file that a new process would open, if that is not the one that this process has open.
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
		for _, file := range libraryFiles(l.root) {
			candidate := nvml.New(nvml.WithLibraryPath(file))
			pin := dl.New(file, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
			if pin.Open() == nil {
				l.Interface, l.found = candidate, true
				l.opened, _ = identifyLibrary(l.root)
				break
			}
		}
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

// Shutdown does nothing while the library is not initialised: go-nvml would end the
// process.
func (l *library) Shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	l.users--
	return l.Interface.Shutdown()
}

// libraryFiles lists where the library may be: for the host, what the dynamic loader
// finds by itself, then the folders that distributions and NVIDIA's driver images use.
func libraryFiles(root string) []string {
	var files []string
	if root == "/" {
		files = append(files, libraryName)
	}
	for _, folder := range []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
		"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
		"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current",
		"usr/lib", "usr/local/nvidia/lib64", "run/opengl-driver/lib",
		"opt/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64",
	} {
		file := filepath.Join(root, folder, libraryName)
		if _, err := os.Stat(file); err == nil {
			files = append(files, file)
		}
	}
	return files
}
