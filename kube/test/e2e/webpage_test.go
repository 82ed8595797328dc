package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	// webAPINodes is how many API nodes the page shows at the end.
	webAPINodes = 500
	// faultShownGoal is how long a fault may take until the page shows it, loadGoal how long the page of webAPINodes may take. Both are
	// printed; the test fails above 20 times as much.
	faultShownGoal = 5 * time.Second
	loadGoal       = 300 * time.Millisecond
	webLimit       = 20
	// webBytes is how many bytes the page of 8 nodes may have; that of fewer has to have fewer.
	webBytes = 100_000
	// traceShown is true on the page of a trace, in the browser.
	traceShown = `location.pathname.startsWith("/gpu/GPU-") && document.readyState === "complete" && document.querySelector("pre") !== null`
	// envScreenshots is the directory for the pictures of the documents.
	envScreenshots = "BERTH_SCREENSHOTS"
)

// webLab is a cluster with pods, and its page.
type webLab struct {
	*lab
	page *webPage
	// origins are those of the pages that the browser has opened.
	origins []string
}

// TestWebPage opens the page of berth web with Chromium, on a cluster with whole, shared and partitioned GPUs, pods that hold them, and
// one that waits.
func TestWebPage(t *testing.T) {
	onOwnCluster(t, 2)
	file := filepath.Join(t.TempDir(), "agent.yaml")
	(&healthLab{file: file}).configure(t, fourReplicas)
	c := ownCluster(t, sandbox.Options{Nodes: 2, Profile: "a100x8-40g", Agent: configured(file), APINodes: webAPINodes})
	w := &webLab{lab: &lab{rig: newRig(c)}}
	var err error
	if w.machine, err = sim.Open(w.node.SimDir()); err != nil {
		t.Fatal(err)
	}
	w.removeAPIGPUNodes(t)
	w.waitAllocatableOf(t, sharedOffers())
	w.load(t)
	w.page = startWeb(t, w.rig, c.KubeconfigPath())
	b := startBrowser(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *webLab, *browser)
	}{
		{"Board", testWebBoard}, {"Trace", testWebTrace}, {"Narrow", testWebNarrow}, {"NoScript", testWebNoScript},
		{"Fault", testWebFault}, {"NoPods", testWebNoPods}, {"SignIn", testWebSignIn}, {"Screenshots", testWebScreenshots}, {"ManyNodes", testWebManyNodes},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, w, b) })
	}
	b.checkRequests(t, append(w.origins, w.page.origin)...)
}

// removeAPIGPUNodes deletes the GPUNodes of API nodes, which come back at the end.
func (w *webLab) removeAPIGPUNodes(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(w.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	for _, name := range w.APINodeNames() {
		group.Go(func() error { return client.Resource(v1alpha1.GPUNodes()).Delete(ctx, name, metav1.DeleteOptions{}) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// load creates pods of two namespaces on the GPUs, and one that waits.
func (w *webLab) load(t *testing.T) {
	t.Helper()
	for _, name := range []string{"team-vision", "team-language"} {
		w.createNamespace(t, name)
	}
	in := func(namespace string, pod *corev1.Pod) *corev1.Pod {
		pod.Namespace = namespace
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		return pod
	}
	w.run(t,
		in("team-vision", podWithGPUs("segment", 2)), in("team-language", podWithGPUs("pretrain", 4)),
		in("team-language", podWith("notebook-1", sharedResource, 1)), in("team-vision", podWith("notebook-2", sharedResource, 1)),
		in("team-vision", podWith("embed", "nvidia.com/mig-3g.20gb", 1)), in("team-language", podWith("serve", mig1gs, 1)))
	waits := in("team-language", podWithGPUs("pretrain-large", 8))
	waits.Spec.NodeSelector = map[string]string{corev1.LabelHostname: w.node.Name()}
	if _, err := w.CreatePod(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cleanUp(t, waits) })
}

// createNamespace creates a namespace; the cluster is deleted with it.
func (r *rig) createNamespace(t *testing.T, name string) {
	t.Helper()
	if _, err := r.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 30*time.Second, "the namespace has its account", func(ctx context.Context) error {
		_, err := r.Client().CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// testWebBoard checks what the page shows against the GPUNodes.
func testWebBoard(t *testing.T, w *webLab, b *browser) {
	b.open(t, w.page.address)
	if at := resultOf(t, b, chromedp.Location()); strings.Contains(at, "token") {
		t.Errorf("the address %s has the token", at)
	}
	b.waitFor(t, 30*time.Second, "the pod that waits has a reason", `document.querySelector("#waits").innerText.includes("pretrain-large") && !document.querySelector("#waits").innerText.includes("being evaluated")`)
	gpus := evaluate[int](t, b, `document.querySelectorAll(".gpu").length`)
	parts := evaluate[[]part](t, b, `Array.from(document.querySelectorAll(".node")).filter((n) => n.innerText.includes("node-0")).flatMap((n) =>
		Array.from(n.querySelectorAll("rect.edge"))).map((r) => ({X: r.x.baseVal.value, Width: r.width.baseVal.value}))`)
	titles := evaluate[[]string](t, b, `Array.from(document.querySelectorAll(".gpu title")).map((t) => t.textContent)`)
	if gpus != 16 {
		t.Errorf("the page shows %d GPUs of two nodes with 8 each", gpus)
	}
	w.checkParts(t, parts)
	for _, pod := range []string{"team-vision/segment", "team-language/pretrain", "team-language/notebook-1", "team-vision/notebook-2", "team-vision/embed", "team-language/serve"} {
		if !slices.ContainsFunc(titles, func(title string) bool { return strings.Contains(title, "held by pod "+pod) }) {
			t.Errorf("no GPU is held by %s: %.2000q", pod, titles)
		}
	}
}

// part is the rectangle of a MIG device on the page.
type part struct{ X, Width float64 }

// checkParts compares the places of MIG devices on the page with those of the node.
func (w *webLab) checkParts(t *testing.T, parts []part) {
	t.Helper()
	status := w.status(t)
	var want []string
	for i := range status.Devices {
		migs := slices.Clone(status.Devices[i].MIGDevices)
		slices.SortFunc(migs, func(a, b v1alpha1.MIGDevice) int { return a.Start - b.Start })
		for _, m := range migs {
			want = append(want, fmt.Sprintf("%d+%d", m.Start, m.Size))
		}
	}
	var got []string
	for _, p := range parts {
		// A GPU of 8 memory slices is 56 wide.
		got = append(got, fmt.Sprintf("%.0f+%.0f", p.X/7, p.Width/7))
	}
	if len(want) != 4 || !slices.Equal(got, want) {
		t.Errorf("the page has MIG devices at %v, the node at %v", got, want)
	}
}

// status returns what the GPUNode of the first node says.
func (w *webLab) status(t *testing.T) *v1alpha1.GPUNodeStatus {
	t.Helper()
	node, err := w.gpuNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &node.Status
}

// testWebTrace follows the link of a GPU to its trace.
func testWebTrace(t *testing.T, w *webLab, b *browser) {
	b.open(t, w.page.origin+"/")
	b.clickHeld(t, "team-vision/segment")
	b.waitFor(t, 20*time.Second, "the trace", traceShown)
	text := evaluate[string](t, b, `document.querySelector("pre").innerText`)
	uuid := ""
	for word := range strings.FieldsSeq(text) {
		if strings.HasPrefix(word, "GPU-") {
			uuid = strings.Trim(word, "(),")
			break
		}
	}
	if printed := w.berth(t, "trace", "--kubeconfig", w.KubeconfigPath(), uuid).out; !strings.Contains(text, "segment") || firstLine(printed) != firstLine(text) {
		t.Errorf("the page has\n%s\nberth trace prints\n%s", text, printed)
	}
	evaluate[chromedp.Void](t, b, `history.back()`)
	b.waitFor(t, 20*time.Second, "the board", `document.querySelectorAll(".gpu").length === 16`)
}

func firstLine(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(first)
}

// clickHeld clicks on the first GPU that a pod holds.
func (b *browser) clickHeld(t *testing.T, pod string) {
	t.Helper()
	evaluate[chromedp.Void](t, b, fmt.Sprintf(`Array.from(document.querySelectorAll(".gpu")).find((g) => g.textContent.includes(%q)).dispatchEvent(
		new MouseEvent("click", {bubbles: true, cancelable: true}))`, pod))
}

// testWebNarrow checks that nothing is wider than the window of a phone.
func testWebNarrow(t *testing.T, w *webLab, b *browser) {
	b.do(t, chromedp.EmulateViewport(360, 740))
	b.open(t, w.page.origin+"/")
	width, gpus := evaluate[int](t, b, `document.documentElement.scrollWidth`), evaluate[int](t, b, `document.querySelectorAll(".gpu").length`)
	if width > 360 || gpus != 16 {
		t.Errorf("the page is %d wide in a window of 360, with %d GPUs", width, gpus)
	}
	b.screenshot(t, "page-narrow.png")
	b.do(t, chromedp.EmulateViewport(windowWidth, windowHeight))
}

// testWebNoScript opens the page and a trace with scripts switched off.
func testWebNoScript(t *testing.T, w *webLab, b *browser) {
	b.disableScripts(t, true)
	defer b.disableScripts(t, false)
	b.open(t, w.page.origin+"/")
	page := resultOf(t, b, chromedp.OuterHTML("html"))
	for _, want := range []string{"team-vision/segment", "pretrain-large", `http-equiv="refresh"`} {
		if !strings.Contains(page, want) {
			t.Errorf("without a script the page has no %q:\n%s", want, page)
		}
	}
	b.do(t, chromedp.Click(".gpu"))
	waitUntil(t, 20*time.Second, "a trace without a script", func(context.Context) error {
		if at := resultOf(t, b, chromedp.Location()); !strings.Contains(at, "/gpu/") {
			return fmt.Errorf("the page is %s", at)
		}
		return nil
	})
}

// testWebFault checks how soon an open page shows a fault.
func testWebFault(t *testing.T, w *webLab, b *browser) {
	b.open(t, w.page.origin+"/")
	broken := w.status(t).Devices[7].UUID
	at := time.Now()
	if err := w.machine.Inject(sim.Fault{GPU: broken, XID: 79}); err != nil {
		t.Fatal(err)
	}
	b.waitFor(t, webLimit*faultShownGoal, "the page shows the fault", fmt.Sprintf(`document.querySelector("#wrong").innerText.includes("XID79") && document.querySelector("a[href='/gpu/%s'] path.bad") !== null`, broken))
	t.Logf("the page shows a fault after %s; goal %s", ms(time.Since(at)), faultShownGoal)
}

// testWebNoPods checks that a user who may not list pods gets a page without their names.
func testWebNoPods(t *testing.T, w *webLab, _ *browser) {
	page := startWeb(t, w.rig, w.viewer(t))
	body, _ := page.get(t, "/")
	for _, want := range []string{"Where is it?", "of a namespace whose pods you may not list", "Only what belongs to namespaces whose pods you may list is named"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in:\n%s", want, body)
		}
	}
	object, _ := page.get(t, "/api/v1/board")
	for _, name := range []string{"segment", "pretrain", "notebook", "embed", "team-vision", "team-language"} {
		if strings.Contains(body, name) || strings.Contains(object, name) {
			t.Errorf("a user who may not list pods reads %q", name)
		}
	}
}

// viewer returns the kubeconfig of an account that may read Nodes and GPUNodes.
func (w *webLab) viewer(t *testing.T) string {
	t.Helper()
	const name = "viewer"
	meta := metav1.ObjectMeta{Name: name}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"gpunodes"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
	}
	if _, err := w.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
	}
	if _, err := w.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return w.kubeconfigOf(t, name)
}

// kubeconfigOf creates an account in the namespace default and returns a kubeconfig with a token of it.
func (w *webLab) kubeconfigOf(t *testing.T, account string) string {
	t.Helper()
	accounts := w.Client().CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(w.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(t.TempDir(), account+".conf")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// testWebScreenshots makes the pictures of the documents.
func testWebScreenshots(t *testing.T, w *webLab, b *browser) {
	b.open(t, w.page.origin+"/")
	b.screenshot(t, "page.png")
	b.clickHeld(t, "team-vision/segment")
	b.waitFor(t, 20*time.Second, "the trace", traceShown)
	b.screenshot(t, "page-trace.png")
}

// testWebManyNodes measures the page of many nodes.
func testWebManyNodes(t *testing.T, w *webLab, b *browser) {
	if err := w.WriteAPIGPUNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 30*time.Second, "the page has all nodes", func(context.Context) error {
		var made v1alpha1.Board
		body, _ := w.page.get(t, "/api/v1/board")
		if err := json.Unmarshal([]byte(body), &made); err != nil {
			return err
		}
		if made.Totals.GPUs != 8*(webAPINodes+2) {
			return fmt.Errorf("it has %d GPUs", made.Totals.GPUs)
		}
		return nil
	})
	var took []time.Duration
	for range 5 {
		time.Sleep(1100 * time.Millisecond) // What was read is kept for a second.
		at := time.Now()
		w.page.get(t, "/")
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	t.Logf("the page of %d nodes takes %s in the median of %d, and %s at most, with a read of the cluster; goal %s", webAPINodes+2, ms(took[2]), len(took), ms(took[4]), loadGoal)
	if took[2] > webLimit*loadGoal {
		t.Errorf("the page takes %s", ms(took[2]))
	}
	b.open(t, w.page.origin+"/")
	b.screenshot(t, "page-many.png")
}

// webPage is a running berth web.
type webPage struct {
	address, origin string
	client          *http.Client
}

// startWeb runs berth web until the test ends.
func startWeb(t *testing.T, r *rig, kubeconfig string) *webPage {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "web")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(r.State().Bin, "berth"), "web", "--kubeconfig", kubeconfig, "--agent-namespace", agentNamespace)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"HOME=" + t.TempDir()}, out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The context of the test has ended: the program was asked to end.
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("berth web ended with %v", err)
		}
	})
	p := &webPage{}
	waitUntil(t, time.Minute, "berth web prints its address", func(context.Context) error {
		data, err := os.ReadFile(out.Name())
		if err != nil {
			return err
		}
		if p.address = strings.TrimSpace(string(data)); !strings.Contains(p.address, "/?token=") || !strings.HasSuffix(string(data), "\n") {
			return fmt.Errorf("it printed %q", data)
		}
		return nil
	})
	parsed, err := url.Parse(p.address)
	if err != nil {
		t.Fatal(err)
	}
	p.origin = "http://" + parsed.Host
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.client = &http.Client{Jar: jar, Timeout: time.Minute}
	if _, size := p.fetch(t, p.address); size > webBytes {
		t.Errorf("the page has %d bytes", size)
	}
	return p
}

// get returns what the page has at a path.
func (p *webPage) get(t *testing.T, path string) (body string, size int) {
	t.Helper()
	return p.fetch(t, p.origin+path)
}

func (p *webPage) fetch(t *testing.T, address string) (body string, size int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	status, body := answerOf(t, p.client, request)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", address, status, body)
	}
	return body, len(body)
}

// answerOf sends a request and returns what the page answers; status 0 and the error when it does not.
func answerOf(t *testing.T, client *http.Client, request *http.Request) (status int, body string) {
	t.Helper()
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(data)
}
