package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// offerSample is one answer of the kubelet: the healthy devices of each resource.
type offerSample struct {
	at     time.Time
	offers map[string][]string
	err    error
}

// offerWatch polls the kubelet until it is stopped.
type offerWatch struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	samples []offerSample
}

func (l *lab) watchOffers(t testing.TB) *offerWatch {
	ctx, cancel := context.WithCancel(t.Context())
	w := &offerWatch{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			offers, err := l.healthyIDs(ctx)
			if ctx.Err() != nil {
				return
			}
			w.mu.Lock()
			w.samples = append(w.samples, offerSample{time.Now(), offers, err})
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *offerWatch) stop() []offerSample {
	w.cancel()
	<-w.done
	return w.samples
}

// waitFor waits until a sample after a moment is as wanted, and returns when it was taken.
func (w *offerWatch) waitFor(t testing.TB, after time.Time, what string, is func(map[string][]string) bool) time.Time {
	t.Helper()
	var at time.Time
	waitUntil(t, 40*time.Second, what, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, s := range w.samples {
			if s.at.After(after) && s.err == nil && is(s.offers) {
				at = s.at
				return nil
			}
		}
		if len(w.samples) == 0 {
			return errors.New("no sample was taken yet")
		}
		last := w.samples[len(w.samples)-1]
		return fmt.Errorf("it has %v (%v)", counts(last.offers), last.err)
	})
	return at
}

// checkSteady fails the test for each sample in which one of the resources has other devices than in the first, and
// logs the longest pause between samples.
func checkSteady(t testing.TB, samples []offerSample, resources ...string) {
	t.Helper()
	if len(samples) == 0 {
		t.Fatal("no sample was taken")
	}
	var pause time.Duration
	complaints := 0
	for i, s := range samples {
		if i > 0 {
			pause = max(pause, s.at.Sub(samples[i-1].at))
		}
		if s.err != nil {
			t.Errorf("sample %d: %v", i, s.err)
			continue
		}
		for _, name := range resources {
			if was, is := samples[0].offers[name], s.offers[name]; !slices.Equal(was, is) && complaints < 20 {
				complaints++
				t.Errorf("sample %d, %s after the first: %s has %d devices %v, want the %d as before", i,
					ms(s.at.Sub(samples[0].at)), name, len(is), is, len(was))
			}
		}
	}
	t.Logf("allocatable of %s: the same in %d samples over %s, at most %s apart",
		strings.Join(resources, ", "), len(samples), ms(samples[len(samples)-1].at.Sub(samples[0].at)), ms(pause))
}

// arrivals keep creating pods that request one device, check it and end; one worker per given resource name.
type arrivals struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
	done   atomic.Int64

	mu     sync.Mutex
	failed []error
}

func (l *lab) admitAll(t testing.TB, resources ...string) *arrivals {
	ctx, cancel := context.WithCancel(t.Context())
	a := &arrivals{cancel: cancel}
	for worker, name := range resources {
		a.group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				// Not cancelled early: a pod that was created is also removed.
				if err := l.admitFor(fmt.Sprintf("passing-%d-%d", worker, i), name); err != nil {
					a.mu.Lock()
					a.failed = append(a.failed, err)
					a.mu.Unlock()
					return
				}
				a.done.Add(1)
			}
		})
	}
	t.Cleanup(func() { a.cancel(); a.group.Wait() })
	return a
}

func (l *lab) admitFor(name, of string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pod := podRequesting(name, of, 1, "devices")
	if _, err := l.CreatePod(ctx, pod); err != nil {
		return err
	}
	_, err := l.WaitPhase(ctx, pod.Namespace, name, corev1.PodSucceeded)
	none := int64(0)
	gone := l.Client().CoreV1().Pods(pod.Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &none})
	return errors.Join(err, gone)
}

func (a *arrivals) count() int { return int(a.done.Load()) }

// broken records that a pod was not admitted; stop reports it.
func (a *arrivals) broken() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.failed) > 0
}

func (a *arrivals) stop(t testing.TB) {
	t.Helper()
	a.cancel()
	a.group.Wait()
	for _, err := range a.failed {
		t.Errorf("a pod that fits was not admitted: %v", err)
	}
}

// waitMore waits until this number of further pods was admitted.
func (a *arrivals) waitMore(t testing.TB, more int) {
	t.Helper()
	from := a.count()
	waitUntil(t, 40*time.Second, fmt.Sprintf("%d more pods were admitted", more), func(context.Context) error {
		if n := a.count() - from; !a.broken() && n < more {
			return fmt.Errorf("%d were", n)
		}
		return nil
	})
}
