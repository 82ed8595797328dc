package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/httpserver"
)

const (
	// floodPods is how many pods attack at the same time.
	floodPods = 4
	// floodScrape is how long half of the scrapes may take then, and floodLongest each of them, on a machine that does other things; in
	// the soak, on one that does nothing else, each may take floodScrape.
	// floodStart is how long a pod with a GPU may take to run.
	floodScrape  = time.Second
	floodLongest = 5 * time.Second
	floodStart   = 30 * time.Second
)

// testFlood attacks the agents, the operator and the page from pods, while a client scrapes each of them and pods start. BERTH_SOAK=1 for
// 10 minutes.
func testFlood(t *testing.T, i *installed) {
	lasts, limit := 20*time.Second, floodLongest
	if os.Getenv(envSoak) != "" {
		lasts, limit = 10*time.Minute, floodScrape
	}
	ctx := timeout(t, lasts+3*time.Minute)
	removePage := i.installSecurePage(ctx, t)
	defer removePage()
	targets := map[string]string{}
	var arguments []string
	for _, target := range []struct{ name, scheme, path string }{
		{agentName, "http", ":9835/metrics"}, {"berth-operator", "http", ":8080/metrics"}, {"berth-web", "https", ":8088/healthz"},
	} {
		for _, pod := range i.podsNamed(ctx, t, target.name) {
			targets[pod.Name] = target.scheme + "://" + pod.Status.PodIP + target.path
			address := pod.Status.PodIP + target.path[:5]
			if target.scheme == "https" {
				address = "https://" + address
			}
			arguments = append(arguments, address)
		}
	}
	for n := range floodPods {
		attacker := workloadPod(fmt.Sprint("flood-", n), append([]string{"flood"}, arguments...)...)
		if _, err := i.CreatePod(ctx, attacker); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := i.DeletePodAndWait(context.WithoutCancel(ctx), attacker.Namespace, attacker.Name, 0); err != nil {
				t.Error(err)
			}
		}()
		if _, err := i.WaitPhase(ctx, attacker.Namespace, attacker.Name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}

	client := &http.Client{Timeout: 10 * floodScrape, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
			return i.DialInside(ctx, kind, address)
		},
	}}
	end := time.Now().Add(lasts)
	var group errgroup.Group
	for name, address := range targets {
		group.Go(func() error {
			var times []time.Duration
			for time.Now().Before(end) {
				took, err := i.fetch(ctx, client, address)
				if err != nil {
					return fmt.Errorf("scrape %d of %s: %w", len(times), name, err)
				}
				times = append(times, took)
				time.Sleep(500 * time.Millisecond) // A scraper waits; nothing is waited for.
			}
			slices.Sort(times)
			middle, longest := times[len(times)/2], times[len(times)-1]
			t.Logf("%d scrapes of %s took %v, the longest %v", len(times), name, middle, longest)
			if middle > floodScrape || longest > limit {
				return fmt.Errorf("%d scrapes of %s took %v, the longest %v", len(times), name, middle, longest)
			}
			return nil
		})
	}
	group.Go(func() error {
		for n := 0; time.Now().Before(end); n++ {
			began := time.Now()
			pod := podWithGPUs(fmt.Sprint("beside-flood-", n), 1)
			if _, err := i.CreatePod(ctx, pod); err != nil {
				return err
			}
			if _, err := i.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
				return err
			}
			if took := time.Since(began); took > floodStart {
				return fmt.Errorf("pod %d runs after %v", n, took)
			}
			if err := i.DeletePodAndWait(ctx, pod.Namespace, pod.Name, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	for name := range targets {
		i.checkMemory(ctx, t, name)
	}
	if log, err := i.PodLogs(ctx, metav1.NamespaceDefault, "flood-0", "main"); err == nil && len(log) > 100 {
		t.Logf("an attacker says: %s", log[len(log)-100:])
	}
}

// fetch reads a page and returns how long it took.
func (i *installed) fetch(ctx context.Context, client *http.Client, address string) (time.Duration, error) {
	began := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, err
	}
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %s", answer.Status)
	}
	return time.Since(began), nil
}

// podsNamed returns the pods of a component.
func (i *installed) podsNamed(ctx context.Context, t *testing.T, name string) []corev1.Pod {
	t.Helper()
	pods, err := i.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("%s has %d pods: %v", name, len(pods.Items), err)
	}
	return pods.Items
}

// checkMemory checks that a pod was not restarted, and has not come near its limit of memory.
func (i *installed) checkMemory(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	pod, err := i.Client().CoreV1().Pods(agentNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.RestartCount > 0 {
			t.Errorf("%s was restarted: %+v", name, status.LastTerminationState)
		}
	}
	nodes := i.Client().CoreV1().RESTClient().Get().Resource("nodes")
	text, err := nodes.Name(pod.Spec.NodeName).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	var stats struct {
		Pods []struct {
			PodRef     struct{ Name string }
			Containers []struct {
				Memory struct{ WorkingSetBytes int64 }
			}
		}
	}
	if err := json.Unmarshal(text, &stats); err != nil {
		t.Error(err)
		return
	}
	limit := pod.Spec.Containers[0].Resources.Limits.Memory().Value()
	for _, one := range stats.Pods {
		if one.PodRef.Name != name || len(one.Containers) == 0 {
			continue
		}
		used := one.Containers[0].Memory.WorkingSetBytes
		t.Logf("%s uses %d of %d MiB", name, used>>20, limit>>20)
		if used > limit*3/4 {
			t.Errorf("%s uses %d of %d MiB", name, used>>20, limit>>20)
		}
	}
}

// installSecurePage installs the page with TLS, and returns what removes it.
func (i *installed) installSecurePage(ctx context.Context, t *testing.T) (remove func()) {
	t.Helper()
	made, err := httpserver.SelfSigned("berth-web", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate := made.Certificates[0]
	key, err := x509.MarshalECPrivateKey(certificate.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "berth-web-tls"}, Type: corev1.SecretTypeTLS}
	secret.Data = map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}),
	}
	if _, err := i.Client().CoreV1().Secrets(agentNamespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	text, err := i.Helm(ctx, i.MachineValues(), "template", "berth", i.ChartArchive(), "--namespace", agentNamespace, "--values", "-",
		"--set", "web.enabled=true", "--set", "web.tlsSecret="+secret.Name, "--show-only", "templates/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the page is available", func(ctx context.Context) error {
		page, err := i.Client().AppsV1().Deployments(agentNamespace).Get(ctx, "berth-web", metav1.GetOptions{})
		if err == nil && page.Status.AvailableReplicas != 1 {
			err = fmt.Errorf("its status is %+v", page.Status)
		}
		return err
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		client, name, now := i.Client(), "berth-web", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}
		for _, err := range []error{
			client.AppsV1().Deployments(agentNamespace).Delete(ctx, name, now), client.CoreV1().Services(agentNamespace).Delete(ctx, name, now),
			client.CoreV1().ServiceAccounts(agentNamespace).Delete(ctx, name, now),
			client.CoreV1().Secrets(agentNamespace).Delete(ctx, secret.Name, now),
			client.RbacV1().ClusterRoles().Delete(ctx, name, now), client.RbacV1().ClusterRoleBindings().Delete(ctx, name, now),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		waitUntil(t, time.Minute, "the page is gone", func(ctx context.Context) error {
			pods, err := client.CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-web"})
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("%d pods are left", len(pods.Items))
			}
			return err
		})
	}
}
