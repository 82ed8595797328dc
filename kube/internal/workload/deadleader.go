package workload

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// deadLeader ends only the first thread of the process: the process is a zombie in /proc, and its other threads keep
// its files open. It ends when it is killed.
func deadLeader() error {
	for {
		runtime.LockOSThread()
		if syscall.Gettid() == os.Getpid() {
			_, _, errno := syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
			return errno
		}
		go func() { _ = deadLeader() }() // on another thread; one of them is the first
		time.Sleep(time.Second)
	}
}
