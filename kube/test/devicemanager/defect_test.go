package devicemanager

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
)

func TestMain(m *testing.M) {
	simtest.Main() // nvidia-smi of a simulated machine is this program.
	klog.SetLogger(klog.Logger{})
	if text := os.Getenv(envChild); text != "" {
		fmt.Fprintln(os.Stderr, runChild(text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// What the environment sets: BERTH_SOAK=1 for the large counts, BERTH_SEED to repeat a run, and BERTH_LOGS for a folder
// that keeps the agent's logs of tests that failed, with every step.
const (
	envSoak = "BERTH_SOAK"
	envSeed = "BERTH_SEED"
	envLogs = "BERTH_LOGS"
)

func soak() bool { return os.Getenv(envSoak) != "" }

// seed returns the seed in the environment, or a new one, and logs it.
func seed(t testing.TB) uint64 {
	t.Helper()
	value := uint64(time.Now().UnixNano())
	if text := os.Getenv(envSeed); text != "" {
		var err error
		if value, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%s: want a number", envSeed, text)
		}
	}
	t.Logf("%s=%d", envSeed, value)
	return value
}

// crowd creates and deletes pods on a node, as many at a time as the scheduler assigns to it.
func (n *node) crowd(count int, plan func(i int) plan) { n.crowdOf(12, count, plan) }

// crowdOf is crowd with a maximum number of pods that have not ended, which bounds their processes.
func (n *node) crowdOf(most, count int, plan func(i int) plan) {
	next := make(chan int)
	var group sync.WaitGroup
	for range most {
		group.Go(func() {
			for i := range next {
				<-n.create(plan(i)).finished
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	group.Wait()
	n.workers.Wait()
}

// TestListLosesReservations demonstrates the kubelet's defect without Berth, with a plugin that grants every request
// and pods that live for 50 to 450 ms. As long as no client lists, no device has two holders.
func TestListLosesReservations(t *testing.T) {
	count := 150
	if soak() {
		count = 2000
	}
	for _, tc := range []struct {
		allocate time.Duration
		list     time.Duration
	}{
		{allocate: 20 * time.Millisecond},
		{allocate: 20 * time.Millisecond, list: 20 * time.Millisecond},
		{allocate: 75 * time.Millisecond, list: 250 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("Allocate %s List %s", tc.allocate, tc.list), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed(t), 0))
			plans := make([]plan, count)
			for i := range plans {
				plans[i] = single(fmt.Sprintf("pod-%d", i), 1, time.Duration(50+random.IntN(400))*time.Millisecond, finish)
			}
			n := newNode(t, 0, delays{notice: 5 * time.Millisecond, status: 5 * time.Millisecond})
			n.startKubelet()
			startStub(t, n.dir, gpuResource, 8, tc.allocate)
			n.awaitDevices(gpuResource, 8)
			stop := func() int { return 0 }
			if tc.list > 0 {
				stop = n.foreign(tc.list)
			}
			n.crowd(count, func(i int) plan { return plans[i] })
			t.Logf("%d pods admitted, %d rejected: %s (%d lists)", n.admitted, len(n.rejected), n.truth, stop())
			if tc.list == 0 && n.truth.doubleOffers > 0 {
				t.Errorf("the kubelet offered a device twice although no client listed:\n  %s", firstOf(n.truth.doubleHolders, 3))
			}
			if tc.list == 20*time.Millisecond && n.truth.doubleOffers == 0 {
				t.Errorf("the kubelet offered no device twice: the defect is gone, or the harness cannot show it")
			}
		})
	}
}
