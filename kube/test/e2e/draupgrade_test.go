package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// upgradeUsers is how many pods get a claim at the same time during an upgrade. Of an agent that refuses prepares between the start of the
// next one and its registration, which takes about a second, one pod after the other sees nothing most of the time.
const upgradeUsers = 4

// testDRAUpgrade prepares claims all the time while the agent is replaced: no prepare fails, and the slices are never gone.
func testDRAUpgrade(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(8)...)
	ctx, cancel := context.WithCancel(t.Context())
	var pods, reads atomic.Int32
	failed := make(chan error, upgradeUsers+1)
	for user := range upgradeUsers {
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := l.useOnce(ctx, fmt.Sprintf("upgrade-%d-%d", user, i)); err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
				pods.Add(1)
			}
			failed <- nil
		}()
	}
	go func() {
		for ctx.Err() == nil {
			all, err := l.slices(ctx)
			if err == nil && (len(all) != 1 || len(all[0].Spec.Devices) != 8) {
				failed <- fmt.Errorf("the node has published %d slices: %v", len(all), all)
				return
			}
			reads.Add(1)
			time.Sleep(sampleEvery)
		}
		failed <- nil
	}()
	rounds := 2
	if os.Getenv(envSoak) != "" {
		rounds = 10
	}
	for range rounds {
		before := pods.Load()
		if err := l.node.UpgradeAgent(timeout(t, 2*time.Minute)); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, time.Minute, "more pods got their claims", func(context.Context) error {
			if n := pods.Load() - before; n < 2*upgradeUsers {
				return fmt.Errorf("they are %d", n)
			}
			return nil
		})
	}
	cancel()
	for range upgradeUsers + 1 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n, err := l.podEvents(t.Context(), "upgrade-", "FailedPrepareDynamicResources"); n > 0 || err != nil {
		t.Errorf("%d prepares have failed (%v)", n, err)
	}
	if reads.Load() < 100 {
		t.Errorf("the slices were read only %d times", reads.Load())
	}
	t.Logf("%d pods got their claims during the upgrades; the slices were there in %d reads", pods.Load(), reads.Load())
	l.waitNothingHeld(t)
}

// useOnce runs a pod with a claim, and deletes both.
func (l *draLab) useOnce(ctx context.Context, name string) error {
	claims := l.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	defer func() { _ = claims.Delete(clean, name, metav1.DeleteOptions{}) }()
	if _, err := claims.Create(ctx, claimOf(name, gpuRequest("gpu", 1, attribute("architecture", "Hopper"))), metav1.CreateOptions{}); err != nil {
		return err
	}
	pod := podUsing(name, name)
	_, err := l.CreatePod(ctx, pod)
	if err == nil {
		limited, stop := context.WithTimeout(ctx, 30*time.Second)
		_, err = l.WaitPhase(limited, pod.Namespace, pod.Name, corev1.PodRunning)
		stop()
	}
	return errors.Join(err, l.remove(clean, pod))
}
