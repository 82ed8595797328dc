package devicemanager

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// truth is the harness' own record of the holders of each device. A pod has a device from the time at which a plugin
// granted it until the pod has ended: its admission failed, or its last process was reaped and no other will start.
// This determines whether a device has two holders. A refusal was right as long as the kubelet had not noticed that
// end. After a kubelet has lost its memory, a container has its device only as long as its process runs: the next one
// gets its own.
type truth struct {
	mu  sync.Mutex
	has map[string]map[types.UID]map[string]bool // by device and running pod, the containers
	// ended are the pods without a process, gone those whose end the kubelet has noticed.
	ended map[types.UID]bool
	gone  map[types.UID]bool

	offers        int
	doubleOffers  int
	grants        int
	refusals      int
	doubleHolders []string
	falseRefusals []string
	refused       []string
}

func newTruth() *truth {
	return &truth{has: map[string]map[types.UID]map[string]bool{}, ended: map[types.UID]bool{}, gone: map[types.UID]bool{}}
}

// offer is one Allocate from the kubelet to a plugin.
type offer struct {
	asker
	devices []string
	double  bool
}

// offered records an Allocate before the plugin sees it.
func (t *truth) offered(who asker, devices []string) *offer {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &offer{asker: who, devices: slices.Sorted(slices.Values(devices))}
	o.double = len(t.others(o, t.gone)) > 0
	t.offers++
	if o.double {
		t.doubleOffers++
	}
	return o
}

// answered records the plugin's answer.
func (t *truth) answered(o *offer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.refusals++
		text := fmt.Sprintf("pod %s container %s devices %v: %v", o.pod, o.container, o.devices, err)
		t.refused = append(t.refused, text)
		if !o.double {
			t.falseRefusals = append(t.falseRefusals, text)
		}
		return
	}
	t.grants++
	if t.ended[o.pod] {
		return
	}
	// A pod that ended while the plugin decided is not a second holder.
	for _, other := range t.others(o, t.ended) {
		t.doubleHolders = append(t.doubleHolders, fmt.Sprintf("pod %s container %s was granted %v while %s", o.pod,
			o.container, o.devices, other))
	}
	for _, device := range o.devices {
		if t.has[device] == nil {
			t.has[device] = map[types.UID]map[string]bool{}
		}
		if t.has[device][o.pod] == nil {
			t.has[device][o.pod] = map[string]bool{}
		}
		t.has[device][o.pod][o.container] = o.init
	}
}

// others returns which devices of an offer other pods have, or other containers of the same pod that do not pass them
// on. It ignores pods that are over.
func (t *truth) others(o *offer, over map[types.UID]bool) []string {
	var found []string
	for _, device := range o.devices {
		for _, pod := range slices.Sorted(maps.Keys(t.has[device])) {
			for container, handsOn := range t.has[device][pod] {
				if pod != o.pod && !over[pod] || pod == o.pod && container != o.container && !handsOn {
					found = append(found, fmt.Sprintf("container %s of pod %s had %s", container, pod, device))
				}
			}
		}
	}
	return found
}

// end records that a pod has no process any more and will get none.
func (t *truth) end(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[pod] = true
}

// forget records that the kubelet has noticed the end of a pod.
func (t *truth) forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[pod], t.gone[pod] = true, true
	for _, pods := range t.has {
		delete(pods, pod)
	}
}

// lose records that a container has lost its devices while its pod continues.
func (t *truth) lose(pod types.UID, container string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pods := range t.has {
		delete(pods[pod], container)
		if len(pods[pod]) == 0 {
			delete(pods, pod)
		}
	}
}

// String returns the counts in one line.
func (t *truth) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%d offers of the kubelet, %d of them double; %d grants, %d refusals; %d double holders, %d "+
		"refusals of free devices",
		t.offers, t.doubleOffers, t.grants, t.refusals, len(t.doubleHolders), len(t.falseRefusals))
}

// firstOf shortens a list for a message.
func firstOf(list []string, n int) string {
	if len(list) > n {
		list = append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
	}
	return strings.Join(list, "\n  ")
}
