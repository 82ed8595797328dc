package gangs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// serverClock tells the time of the API server's clock, which the times of objects have: those are never compared with the clock of this
// process. Any goroutine may call it.
type serverClock struct {
	clock clock.PassiveClock
	read  atomic.Pointer[reading]
}

// reading is what the API server's clock said at a time of this process.
type reading struct {
	own    time.Time
	server time.Time
}

// tolerance is by how much two readings differ without that a clock was set: the header Date has whole seconds.
const tolerance = 3 * time.Second

// learn notes what the API server's clock says now.
func (c *serverClock) learn(said time.Time) {
	now := c.clock.Now()
	if old := c.read.Load(); old == nil || old.server.Add(now.Sub(old.own)).Sub(said).Abs() > tolerance {
		c.read.Store(&reading{own: now, server: said})
	}
}

// serverTimeOf returns the time of the API server's clock at a time of this process, and false where it has not been read. It is the time
// of this process then.
func (c *serverClock) serverTimeOf(own time.Time) (time.Time, bool) {
	r := c.read.Load()
	if r == nil {
		return own, false
	}
	return r.server.Add(own.Sub(r.own)), true
}

// now returns the time of the API server's clock.
func (c *serverClock) now() time.Time {
	now, _ := c.serverTimeOf(c.clock.Now())
	return now
}

// own returns when it was a time of the API server's clock, as a time of this process.
func (c *serverClock) own(said time.Time) time.Time {
	r := c.read.Load()
	if r == nil {
		return said
	}
	return r.own.Add(said.Sub(r.server))
}

const (
	// clockEvery is the time between two readings of the API server's clock, clockAgain that after one that has failed, and clockTime how
	// long one can take.
	clockEvery = time.Minute
	clockAgain = 5 * time.Second
	clockTime  = 2 * time.Second
)

// serverTime reads the API server's clock: the header Date of an answer, whatever the answer is. A client that does not use HTTP, as those
// of tests, has the clock of this process.
func serverTime(ctx context.Context, client kubernetes.Interface, c clock.PassiveClock) (time.Time, error) {
	served, ok := client.Discovery().RESTClient().(*rest.RESTClient)
	if !ok || served == nil {
		return c.Now(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, clockTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, served.Get().AbsPath("/version").URL().String(), nil)
	if err != nil {
		return time.Time{}, err
	}
	sender := served.Client
	if sender == nil {
		sender = http.DefaultClient
	}
	answer, err := sender.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	defer answer.Body.Close()
	said := answer.Header.Get("Date")
	if said == "" {
		return time.Time{}, errors.New("the answer has no header Date: a proxy before the API server has removed it")
	}
	at, err := http.ParseTime(said)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the header Date: %w", err)
	}
	return at, nil
}

// readClock reads the API server's clock from time to time.
func (k *keeper) readClock(ctx context.Context) {
	now := k.clock.Now()
	if now.Before(k.clockAt) {
		return
	}
	said, err := serverTime(ctx, k.handle.ClientSet(), k.clock)
	if err != nil {
		if !k.clockFailed {
			klog.FromContext(ctx).Error(err, "Cannot read the clock of the API server: gangs that another scheduler has bound in part are not released until it is known")
		}
		k.clockAt, k.clockFailed = now.Add(clockAgain), true
		return
	}
	k.gangs.server.learn(said)
	k.clockAt, k.clockFailed = now.Add(clockEvery), false
}
