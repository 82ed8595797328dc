package podwatch

import "maps"

// maxRefused bounds how many resource names are counted: a pod that names its node can request any.
const maxRefused = 64

// countRefused counts a pod that the kubelet has refused. The caller has the mutex.
func (w *Watch) countRefused(pod Pod) {
	for name := range pod.Counted {
		if _, known := w.refused[name]; known || len(w.refused) < maxRefused {
			w.refused[name]++
		}
	}
}

// Refused returns by extended resource how many pods that requested it the kubelet has refused for lack of devices since the start, of at
// most 64 resources.
func (w *Watch) Refused() map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.refused)
}
