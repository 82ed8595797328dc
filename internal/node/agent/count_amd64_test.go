package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls that are counted: all that read or change files or their metadata, start programs, or connect to
// sockets. Reads and writes count for files only.
func countedCalls() map[uint32]call {
	return map[uint32]call{
		unix.SYS_OPEN: {"open", 0, false}, unix.SYS_CREAT: {"open", 0, false}, unix.SYS_OPENAT: {"open", 1, true}, unix.SYS_OPENAT2: {"open", 1, true},
		unix.SYS_STAT: {"stat", 0, false}, unix.SYS_LSTAT: {"stat", 0, false}, unix.SYS_NEWFSTATAT: {"stat", 1, true}, unix.SYS_STATX: {"stat", 1, true},
		unix.SYS_ACCESS: {"stat", 0, false}, unix.SYS_FACCESSAT: {"stat", 1, true}, unix.SYS_FACCESSAT2: {"stat", 1, true},
		unix.SYS_READLINK: {"stat", 0, false}, unix.SYS_READLINKAT: {"stat", 1, true},
		unix.SYS_MKDIR: {"make", 0, false}, unix.SYS_MKDIRAT: {"make", 1, true}, unix.SYS_SYMLINKAT: {"make", 2, false}, unix.SYS_LINKAT: {"make", 3, false},
		unix.SYS_RENAME: {"rename", 0, false}, unix.SYS_RENAMEAT: {"rename", 1, true}, unix.SYS_RENAMEAT2: {"rename", 1, true},
		unix.SYS_UNLINK: {"remove", 0, false}, unix.SYS_RMDIR: {"remove", 0, false}, unix.SYS_UNLINKAT: {"remove", 1, true},
		unix.SYS_CHMOD: {"chmod", 0, false}, unix.SYS_FCHMODAT: {"chmod", 1, true}, unix.SYS_UTIMENSAT: {"chmod", 1, true},
		unix.SYS_FSYNC: {"sync", noPath, true}, unix.SYS_FDATASYNC: {"sync", noPath, true}, unix.SYS_SYNCFS: {"sync", noPath, true},
		unix.SYS_READ: {"read", noPath, true}, unix.SYS_PREAD64: {"read", noPath, true}, unix.SYS_READV: {"read", noPath, true},
		unix.SYS_WRITE: {"write", noPath, true}, unix.SYS_PWRITE64: {"write", noPath, true}, unix.SYS_WRITEV: {"write", noPath, true},
		unix.SYS_FTRUNCATE: {"write", noPath, true}, unix.SYS_GETDENTS64: {"read", noPath, true},
		unix.SYS_EXECVE: {"run", 0, false}, unix.SYS_EXECVEAT: {"run", 1, true}, unix.SYS_CONNECT: {"connect", noPath, false},
	}
}

// anyUID is the UID of a pod in a path.
var anyUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// call describes where a system call has its path, and whether its first argument is a file descriptor.
type call struct {
	does string
	path int
	fd   bool
}

const noPath = -1

// Paths that do not exist; a stat of one is a message to the counter.
const (
	countFrom  = "/berth-count/from/"
	countEnd   = "/berth-count/end"
	countNames = "/berth-count/name/"
	countSkip  = "/berth-count/skip/"
)

// counter counts the system calls of another process that concern files.
type counter struct {
	// counts has the counts of each part of the process, by operation and file.
	counts map[string]map[string]int
	part   string
	// names replace the prefixes of paths; those with an empty name are not counted.
	names [][2]string
	// seen has the files that were read or written in this part: a file that is read to its end counts once.
	seen map[string]bool
}

// countFiles runs a test of this binary in another process, and returns the file operations of that process between the
// calls of counted.
func countFiles(t *testing.T, test string, env ...string) map[string]map[string]int {
	t.Helper()
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(sockets[0]), "ours"), os.NewFile(uintptr(sockets[1]), "theirs")
	defer ours.Close()
	child := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	child.Env, child.ExtraFiles = append(os.Environ(), env...), []*os.File{theirs}
	var output bytes.Buffer
	child.Stdout, child.Stderr = &output, &output
	err = child.Start()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{counts: map[string]map[string]int{}}
	followed := c.follow(ours, child.Process.Pid)
	if err := child.Wait(); err != nil {
		t.Fatalf("the process that is counted: %v\n%s", err, &output)
	}
	if followed != nil {
		t.Fatal(followed)
	}
	if len(c.counts) == 0 {
		t.Fatalf("nothing was counted:\n%s", &output)
	}
	return c.counts
}

// follow receives the filter's file descriptor, and counts until the process ends.
func (c *counter) follow(from *os.File, pid int) error {
	conn, err := net.FileConn(from)
	if err != nil {
		return err
	}
	defer conn.Close()
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(one, rights)
	if err != nil || n == 0 {
		return fmt.Errorf("receive the filter: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer memory.Close()
	if _, err := conn.Write(one); err != nil {
		return err
	}
	return c.serve(fds[0], pid, memory)
}

// notification and reply are struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id      uint64
	pid     uint32
	flags   uint32
	number  uint32
	arch    uint32
	pointer uint64
	args    [6]uint64
}

type reply struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

const (
	ioctlReceive = 0xc0502100
	ioctlSend    = 0xc0182101
	goOn         = 1
)

func (c *counter) serve(filter, pid int, memory *os.File) error {
	calls := countedCalls()
	for {
		ready := []unix.PollFd{{Fd: int32(filter), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			if ready[0].Revents != 0 {
				return nil // All threads have ended.
			}
			continue
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(filter), ioctlReceive, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // A signal has interrupted the call; it is repeated.
		}
		c.note(calls[n.number], &n, pid, memory)
		answer := reply{id: n.id, flags: goOn}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(filter), ioctlSend, uintptr(unsafe.Pointer(&answer)))
	}
}

// note counts one call.
func (c *counter) note(call call, n *notification, pid int, memory *os.File) {
	path := ""
	if call.path != noPath {
		text := make([]byte, 4096)
		size, _ := memory.ReadAt(text, int64(n.args[call.path]))
		end := bytes.IndexByte(text[:size], 0)
		path = string(text[:max(end, 0)])
	}
	if part, begins := strings.CutPrefix(path, countFrom); begins {
		c.part, c.counts[part], c.seen = part, map[string]int{}, map[string]bool{}
		return
	}
	if path == countEnd {
		c.part = ""
		return
	}
	if name, ok := strings.CutPrefix(path, countNames); ok {
		name, prefix, _ := strings.Cut(name, "=")
		c.names = append(c.names, [2]string{prefix, name})
		return
	}
	if prefix, ok := strings.CutPrefix(path, countSkip); ok {
		c.names = append(c.names, [2]string{"/" + prefix, ""})
		return
	}
	if c.part == "" {
		return
	}
	if call.fd && !filepath.IsAbs(path) && int32(n.args[0]) >= 0 {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, int32(n.args[0])))
		if err != nil || !strings.HasPrefix(link, "/") || link == os.DevNull || strings.HasPrefix(link, "/dev/pts/") {
			return // A socket, a pipe, an event, or a terminal.
		}
		path = filepath.Join(link, path)
	}
	for _, name := range c.names {
		if rest, found := strings.CutPrefix(path, name[0]); found {
			if name[1] == "" {
				return
			}
			path = name[1] + rest
			break
		}
	}
	what := strings.TrimSpace(call.does + " " + anyUID.ReplaceAllString(path, "UID"))
	if call.does == "read" || call.does == "write" {
		if c.seen[what] {
			return
		}
		c.seen[what] = true
	}
	c.counts[c.part][what]++
}

// beCounted makes the process that countFiles has started report its system calls.
func beCounted(t *testing.T) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.AUDIT_ARCH_X86_64},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
	}
	for number := range maps.Keys(countedCalls()) {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	// From here until the counter has the descriptor, every counted call waits; sendmsg and recvfrom are not counted.
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		t.Fatalf("install the filter: %v", errno)
	}
	const socket = 3
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := unix.Recvfrom(socket, make([]byte, 1), 0); err != nil {
		t.Fatal(err)
	}
}

// counted runs do and counts its file operations as a part with a name.
func counted(part string, do func()) {
	tellCounter(countFrom + part)
	defer tellCounter(countEnd)
	do()
}

// nameFiles makes the counter replace this prefix of paths by a name.
func nameFiles(prefix, name string) { tellCounter(countNames + name + "=" + prefix) }

// skipFiles makes the counter ignore paths with this prefix.
func skipFiles(prefix string) { tellCounter(countSkip + strings.TrimPrefix(prefix, "/")) }

func tellCounter(path string) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		panic(fmt.Sprintf("%s: %v", path, err))
	}
}
