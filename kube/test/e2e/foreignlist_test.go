package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	foreignAtOnce = 12
	foreignEvery  = 20 * time.Millisecond
)

// TestForeignList runs short pods while a monitor lists PodResources every 20 ms, which makes the kubelet offer GPUs of
// running pods again. No GPU may have two running containers. A pod that the agent refused is created again, as a
// controller would do. BERTH_SOAK=1 runs 200 pods instead of 12.
func TestForeignList(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	pods, limit := 12, 2*time.Minute
	if os.Getenv(envSoak) != "" {
		pods, limit = 200, 10*time.Minute
	}
	seed := randomSeed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	lifetimes := make([]time.Duration, pods)
	for i := range lifetimes {
		lifetimes[i] = time.Duration(50+random.IntN(400)) * time.Millisecond
	}
	ctx := timeout(t, limit)
	watched := newChurn(t, r, seed, 0, 0)
	var lists, looks, refused atomic.Int64
	background, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { r.listForeign(background, &lists) })
	beside.Go(func() {
		for ; background.Err() == nil; pauseFor(background, foreignEvery) {
			// A bundle that is being written cannot be read yet.
			if running, err := watched.running(); err == nil {
				watched.checkHolders(running)
				looks.Add(1)
			}
		}
	})
	start := time.Now()
	group, groupContext := errgroup.WithContext(ctx)
	group.SetLimit(foreignAtOnce)
	for i, life := range lifetimes {
		group.Go(func() error {
			for attempt := 0; ; attempt++ {
				again, err := r.runShort(groupContext, fmt.Sprintf("foreign-%d-%d", i, attempt), life)
				if err != nil || !again {
					return err
				}
				refused.Add(1)
			}
		})
	}
	err := group.Wait()
	stop()
	beside.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: %d pods in %s beside %d lists: all containers read %d times, %d pods refused and created again",
		seed, pods, ms(time.Since(start)), lists.Load(), looks.Load(), refused.Load())
	if lists.Load() == 0 || looks.Load() == 0 {
		t.Errorf("%d lists and %d readings of all containers, want many", lists.Load(), looks.Load())
	}
	r.waitHolders(t, map[string]int{})
}

// listForeign lists PodResources as a monitor does, over its own connection.
func (r *rig) listForeign(ctx context.Context, lists *atomic.Int64) {
	socket := filepath.Join(r.node.KubeletDir(), "pod-resources", "kubelet.sock")
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return
	}
	defer conn.Close()
	client := podresources.NewPodResourcesListerClient(conn)
	for ; ctx.Err() == nil; pauseFor(ctx, foreignEvery) {
		if _, err := client.List(ctx, &podresources.ListPodResourcesRequest{}); err == nil {
			lists.Add(1)
		}
	}
}

// runShort runs a pod with one GPU to its end and deletes it. It reports whether the kubelet refused it.
func (r *rig) runShort(ctx context.Context, name string, life time.Duration) (refused bool, err error) {
	if _, err := r.CreatePod(ctx, podWithGPUs(name, 1, "sleep", life.String())); err != nil {
		return false, err
	}
	err = poll(ctx, "pod "+name+" has ended", func() error {
		pod, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		refused = pod.Status.Reason == "UnexpectedAdmissionError"
		if pod.Status.Phase != corev1.PodSucceeded && !refused {
			return fmt.Errorf("it is %s: %s", pod.Status.Phase, pod.Status.Message)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return refused, r.DeletePodAndWait(ctx, metav1.NamespaceDefault, name, -1)
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
