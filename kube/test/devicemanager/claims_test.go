package devicemanager

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/operationexecutor"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/pluginwatcher"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/reconciler"
)

// registerEvery is the time between two rounds of the kubelet's registration of plugins; in a kubelet it is 1 s.
const registerEvery = 20 * time.Millisecond

// claimManager is the kubelet's DRA manager with its registration of drivers, over a folder that replaces /var/lib/kubelet.
type claimManager struct {
	*dra.Manager
	cancel context.CancelFunc
	closed chan struct{}
}

// startClaimManager starts a DRA manager as a kubelet does. It deletes the ResourceSlices of the node in the background.
func startClaimManager(t testing.TB, dir string, client kubernetes.Interface, active dra.ActivePodsFunc, sources config.SourcesReady) *claimManager {
	t.Helper()
	impl, err := dra.NewManager(klog.Logger{}, client, dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(quiet(context.Background()))
	m := &claimManager{Manager: impl, cancel: cancel, closed: make(chan struct{})}
	node := func(context.Context) (*v1.Node, error) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, nil
	}
	if err := impl.Start(ctx, active, node, sources); err != nil {
		t.Fatal(err)
	}
	registerDrivers(ctx, t, dir, impl.GetWatcherHandler(), registerEvery, m.closed)
	return m
}

// registerDrivers registers the drivers in dir as a kubelet does, until closed is closed and ctx ends. These are the parts of
// pluginmanager.NewPluginManager; only the time between two rounds differs.
func registerDrivers(ctx context.Context, t testing.TB, dir string, handler cache.PluginHandler, every time.Duration, closed chan struct{}) {
	t.Helper()
	wanted, actual := cache.NewDesiredStateOfWorld(), cache.NewActualStateOfWorld()
	rounds := reconciler.NewReconciler(operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(&record.FakeRecorder{})),
		every, wanted, actual)
	rounds.AddHandler(registerapi.DRAPlugin, handler)
	if err := pluginwatcher.NewWatcher(filepath.Join(dir, "plugins_registry"), wanted).Start(ctx, closed); err != nil {
		t.Fatal(err)
	}
	go rounds.Run(ctx)
}

// stop ends the manager as the end of the kubelet's process does.
func (m *claimManager) stop() {
	m.cancel()
	close(m.closed)
	m.Stop()
}

// prepare prepares the claims of a pod, as the kubelet does before it makes the pod's sandbox.
func (m *claimManager) prepare(ctx context.Context, pod *v1.Pod) error {
	return m.PrepareResources(quiet(ctx), pod)
}

// unprepare unprepares the claims of a pod that has ended.
func (m *claimManager) unprepare(ctx context.Context, pod *v1.Pod) error {
	return m.UnprepareResources(quiet(ctx), pod)
}

// injected returns the CDI names of the devices of a container's claims.
func (m *claimManager) injected(pod *v1.Pod, container *v1.Container) ([]string, error) {
	info, err := m.GetResources(pod, container)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, device := range info.CDIDevices {
		names = append(names, device.Name)
	}
	return names, nil
}

// registered returns an error while the driver is not registered.
func (m *claimManager) registered(driver string) error {
	_, err := m.GetWatcherHandler().(*plugin.DRAPluginManager).GetPlugin(driver)
	return err
}

// retryClaims is the time between two attempts of the kubelet to prepare or unprepare the claims of a pod.
const retryClaims = 20 * time.Millisecond

// prepareClaims prepares the claims of a pod, repeatedly as the kubelet does; it returns false when the pod is to end.
func (n *node) prepareClaims(p *pod) bool {
	if len(p.plan.claims) == 0 {
		return true
	}
	for {
		n.up.RLock()
		err := n.claims.prepare(context.Background(), p.Pod)
		n.up.RUnlock()
		n.mu.Lock()
		p.unprepared = err
		n.mu.Unlock()
		if err == nil {
			return true
		}
		select {
		case <-p.killed:
			return false
		case <-time.After(retryClaims):
		}
	}
}

// unprepareClaims unprepares the claims of a pod whose processes have ended, repeatedly as the kubelet does: before that, the pod has
// not ended for the kubelet.
func (n *node) unprepareClaims(p *pod) {
	for len(p.plan.claims) > 0 {
		n.up.RLock()
		err := n.claims.unprepare(context.Background(), p.Pod)
		n.up.RUnlock()
		if err == nil {
			return
		}
		n.mu.Lock()
		p.unprepared = err
		n.mu.Unlock()
		time.Sleep(retryClaims)
	}
}

// refusal returns the error of the last prepare or unprepare of a pod's claims; nil when it succeeded.
func (n *node) refusal(p *pod) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.unprepared
}
