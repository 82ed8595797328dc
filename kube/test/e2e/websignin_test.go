package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testWebSignIn opens the page of the cluster, as the chart installs it, for users with different rights.
func testWebSignIn(t *testing.T, w *webLab, b *browser) {
	site := w.installWeb(t)
	t.Run("Form", func(t *testing.T) { site.testForm(t, b) })
	t.Run("Rights", site.testRights)
	t.Run("Revoked", site.testRevoked)
	t.Run("Log", site.testLog)
}

// webSite is the page of the cluster.
type webSite struct {
	*webLab
	pod, origin string
	// seer may read all that the page shows, member only pods of team-vision.
	seer, member string
}

// installWeb installs the page with the chart's objects, and forwards a port to it.
func (w *webLab) installWeb(t *testing.T) *webSite {
	t.Helper()
	ctx := timeout(t, 2*time.Minute)
	text, err := w.Helm(ctx, w.MachineValues(), "template", "berth", w.ChartArchive(), "--namespace", agentNamespace, "--values", "-",
		"--set", "web.enabled=true", "--show-only", "templates/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	s := &webSite{webLab: w}
	waitUntil(t, time.Minute, "the pod of the page runs", func(ctx context.Context) error {
		pods, err := w.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-web"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods: %+v", len(pods.Items), pods.Items)
		}
		s.pod = pods.Items[0].Name
		return nil
	})
	// A connection to a port on which nothing listens yet ends the forwarding.
	waitUntil(t, time.Minute, "the page listens", func(ctx context.Context) error {
		log, err := w.PodLogs(ctx, agentNamespace, s.pod, "web")
		if err == nil && !strings.Contains(log, "http://127.0.0.1:8088/") {
			err = fmt.Errorf("it has printed %q", log)
		}
		return err
	})
	address, err := w.ForwardPort(t.Context(), agentNamespace, s.pod, 8088)
	if err != nil {
		t.Fatal(err)
	}
	s.origin = "http://" + address
	w.origins = append(w.origins, s.origin)
	if status, body := s.get(t, "/healthz", ""); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	reads := []rbacv1.PolicyRule{
		{APIGroups: []string{"berth.dev"}, Resources: []string{"gpunodes"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
	}
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/proxy"}, Verbs: []string{"get", "list"}}
	s.grant(t, "member", "", reads...)
	s.grant(t, "member", "team-vision", pods)
	s.grant(t, "seer", "", append(slices.Clone(reads), pods)...)
	s.member, s.seer = s.token(t, "member"), s.token(t, "seer")
	return s
}

// grant gives an account of the namespace default rights in a namespace, or in all.
func (s *webSite) grant(t *testing.T, account, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "web-" + account, Namespace: namespace}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: account}}
	rbac := s.Client().RbacV1()
	var err error
	if namespace == "" {
		if _, err = rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err == nil {
			_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}, metav1.CreateOptions{})
		}
	} else {
		if _, err = rbac.Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err == nil {
			_, err = rbac.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}}, metav1.CreateOptions{})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// token creates an account of the namespace default, and returns a token of it.
func (s *webSite) token(t *testing.T, account string) string {
	t.Helper()
	accounts := s.Client().CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// get returns what the page has at a path for a token.
func (s *webSite) get(t *testing.T, path, token string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.origin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return s.send(t, request)
}

// signIn enters a token in the form.
func (s *webSite) signIn(t *testing.T, b *browser, token string) {
	t.Helper()
	b.open(t, s.origin+"/")
	b.do(t, chromedp.SendKeys(`input[name="token"]`, token), chromedp.Click(`main form button`))
}

// testForm signs in with a browser, without a script, and follows a GPU to its trace.
func (s *webSite) testForm(t *testing.T, b *browser) {
	b.disableScripts(t, true)
	defer b.disableScripts(t, false)
	s.signIn(t, b, "guess")
	s.waitPage(t, b, "does not accept this token")
	s.signIn(t, b, s.seer)
	s.waitPage(t, b, "signed in as system:serviceaccount:default:seer", "held by pod team-vision/segment", "pretrain-large", "measured 2")
	b.screenshot(t, "page-cluster.png")
	b.do(t, chromedp.Click(".gpu"))
	s.waitPage(t, b, "as berth trace prints it", "GPU-", "signed in as system:serviceaccount:default:seer")
	if page := resultOf(t, b, chromedp.OuterHTML("html")); strings.Contains(page, s.seer) {
		t.Error("the page has the token")
	}
	b.do(t, chromedp.Click("footer button"))
	s.waitPage(t, b, "a token of the cluster")
	b.open(t, s.origin+"/")
	s.waitPage(t, b, "a token of the cluster")
}

// waitPage waits until the browser's page has texts.
func (s *webSite) waitPage(t *testing.T, b *browser, texts ...string) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the page has "+strings.Join(texts, ", "), func(context.Context) error {
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		defer cancel()
		page, err := chromedp.Run(ctx, chromedp.OuterHTML("html"))
		if err != nil {
			return err // Another page is being opened.
		}
		for _, text := range texts {
			if !strings.Contains(page, text) {
				return fmt.Errorf("no %q in %s", text, page)
			}
		}
		return nil
	})
}

// testRights checks the names that each user reads.
func (s *webSite) testRights(t *testing.T) {
	vision, language := []string{"segment", "notebook-2", "embed"}, []string{"pretrain", "notebook-1", `"serve"`, "team-language"}
	viewer := s.viewerToken(t)
	for name, tc := range map[string]struct {
		token       string
		status      int
		has, hasNot []string
	}{
		"all pods":      {s.seer, http.StatusOK, slices.Concat(vision, language), nil},
		"one namespace": {s.member, http.StatusOK, vision, language},
		"no pods":       {viewer, http.StatusOK, []string{"GPU-"}, slices.Concat(vision, language)},
		"no token":      {"", http.StatusUnauthorized, nil, slices.Concat(vision, language)},
		"no user":       {"guess", http.StatusUnauthorized, nil, slices.Concat(vision, language)},
	} {
		status, body := s.get(t, "/api/v1/board", tc.token)
		if status != tc.status {
			t.Errorf("%s: status %d, want %d: %s", name, status, tc.status, body)
		}
		for _, text := range tc.has {
			if !strings.Contains(body, text) {
				t.Errorf("%s: no %q in %s", name, text, body)
			}
		}
		for _, text := range tc.hasNot {
			if strings.Contains(body, text) {
				t.Errorf("%s: reads %q in %s", name, text, body)
			}
		}
	}
	if _, body := s.get(t, "/pod/team-language/serve", s.member); !strings.Contains(body, "is forbidden") || strings.Contains(body, "mig-1g") {
		t.Errorf("a user traces a pod that it may not read: %s", body)
	}
	if _, body := s.get(t, "/pod/team-vision/segment", s.member); !strings.Contains(body, "segment") || strings.Contains(body, "is forbidden: User") && !strings.Contains(body, "GPU-") {
		t.Errorf("a user traces its own pod: %s", body)
	}
}

// viewerToken returns a token of an account that may read GPUNodes and Nodes.
func (s *webSite) viewerToken(t *testing.T) string {
	t.Helper()
	s.grant(t, "looker", "", rbacv1.PolicyRule{APIGroups: []string{"berth.dev", ""}, Resources: []string{"gpunodes", "nodes"}, Verbs: []string{"get", "list"}})
	return s.token(t, "looker")
}

// testRevoked: the API server does not accept the token of a deleted account, and signing in with it fails. That a session then ends within
// a minute is tested without a cluster (TestSession).
func (s *webSite) testRevoked(t *testing.T) {
	if status, body := s.post(t, "/sign-in", s.member); status != http.StatusSeeOther {
		t.Fatalf("status %d: %s", status, body)
	}
	if err := s.Client().CoreV1().ServiceAccounts(metav1.NamespaceDefault).Delete(t.Context(), "member", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitUntil(t, time.Minute, "the token of a deleted account is refused", func(context.Context) error {
		if status, body := s.post(t, "/sign-in", s.member); status != http.StatusForbidden || !strings.Contains(body, "does not accept this token") {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
	t.Logf("refused after %s", ms(time.Since(began)))
}

// post sends the form with a token.
func (s *webSite) post(t *testing.T, path, token string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.origin+path, strings.NewReader(url.Values{"token": {token}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.send(t, request)
}

// send sends a request, and follows no redirect.
func (s *webSite) send(t *testing.T, request *http.Request) (status int, body string) {
	t.Helper()
	return answerOf(t, &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, request)
}

// testLog: who signs in is logged, the token is not.
func (s *webSite) testLog(t *testing.T) {
	log, err := s.PodLogs(t.Context(), agentNamespace, s.pod, "web")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log, "user=system:serviceaccount:default:seer") || strings.Contains(log, s.seer) || strings.Contains(log, strings.Split(s.seer, ".")[2]) {
		t.Errorf("the log is\n%s", log)
	}
}
