package deviceplugin

import (
	"sync"
	"sync/atomic"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// listVersion is one version of the device list of a resource. It never changes.
type listVersion struct {
	// version is new with each listVersion; a stream that has sent it is up to date.
	version uint64
	list    *pluginapi.ListAndWatchResponse
	// standby is true while a newer instance is active for the resource; streams then send nothing.
	standby bool
	// next is closed when there is a newer version.
	next chan struct{}
}

// publishedList holds the latest listVersion. Any number of streams read it, each for itself; a slow one skips versions, but never the
// latest.
type publishedList struct {
	writing sync.Mutex
	latest  atomic.Pointer[listVersion]
}

func newPublishedList(list *pluginapi.ListAndWatchResponse) *publishedList {
	p := &publishedList{}
	p.latest.Store(&listVersion{version: 1, list: list, next: make(chan struct{})})
	return p
}

func (p *publishedList) load() *listVersion { return p.latest.Load() }

// update publishes a new version, made from the latest one by change. With nil it has the same content, and streams send it again.
func (p *publishedList) update(change func(*listVersion)) {
	p.writing.Lock()
	defer p.writing.Unlock()
	old := p.latest.Load()
	changed := &listVersion{version: old.version + 1, list: old.list, standby: old.standby, next: make(chan struct{})}
	if change != nil {
		change(changed)
	}
	p.latest.Store(changed)
	close(old.next)
}
