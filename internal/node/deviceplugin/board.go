package deviceplugin

import (
	"sync"
	"sync/atomic"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// bulletin is one version of what the streams of a resource have to say. It never changes.
type bulletin struct {
	// version is new with each bulletin; a stream that has sent it is up to date.
	version uint64
	list    *pluginapi.ListAndWatchResponse
	// mute says that a newer instance speaks for the resource.
	mute bool
	// next is closed when there is a newer bulletin.
	next chan struct{}
}

// board holds the current bulletin. Any number of streams read it; none can take
// anything from another, and a slow one misses versions but never the last.
type board struct {
	writing sync.Mutex
	current atomic.Pointer[bulletin]
}

func newBoard(list *pluginapi.ListAndWatchResponse) *board {
	b := &board{}
	b.current.Store(&bulletin{version: 1, list: list, next: make(chan struct{})})
	return b
}

func (b *board) read() *bulletin { return b.current.Load() }

// post puts up a new bulletin, made from the current one by change (nil: say the same again).
func (b *board) post(change func(*bulletin)) {
	b.writing.Lock()
	defer b.writing.Unlock()
	old := b.current.Load()
	fresh := &bulletin{version: old.version + 1, list: old.list, mute: old.mute, next: make(chan struct{})}
	if change != nil {
		change(fresh)
	}
	b.current.Store(fresh)
	close(old.next)
}
