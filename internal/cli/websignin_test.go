package cli

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/web"
)

// signInAPI is an API server for users by their tokens. It refuses what has no token, and records the requests of each user.
type signInAPI struct {
	users map[string]string
	// rights are what users may list: "user resource namespace", with * for all namespaces.
	rights map[string]bool
	// gpuNodes are what users list who have the right.
	gpuNodes []v1alpha1.GPUNode
	// pods are what each user reads who knows their names.
	pods []corev1.Pod
	mu   sync.Mutex
	seen []string
	// reviewed are the namespaces of which users asked whether they may list something.
	reviewed []string
}

func (a *signInAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user := a.users[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	a.mu.Lock()
	a.seen = append(a.seen, user+" "+r.Method+" "+r.URL.Path)
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(r.URL.Path, "/")
	resource := parts[len(parts)-1]
	switch {
	case user == "":
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case resource == "selfsubjectreviews":
		fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","metadata":{},"status":{"userInfo":{"username":%q}}}`, user)
	case resource == "selfsubjectaccessreviews":
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		what := review.Spec.ResourceAttributes
		a.mu.Lock()
		a.reviewed = append(a.reviewed, what.Namespace)
		a.mu.Unlock()
		review.Status.Allowed = what.Verb == "list" && a.may(user, what.Resource, what.Namespace)
		_ = json.NewEncoder(w).Encode(&review)
	case resource == "gpunodes" && a.may(user, resource, ""):
		_ = json.NewEncoder(w).Encode(&v1alpha1.GPUNodeList{Items: a.gpuNodes})
	case strings.Contains(r.URL.Path, "/gpunodes/") && a.may(user, "gpunodes", ""):
		answerNamed(w, a.gpuNodes, func(n *v1alpha1.GPUNode) bool { return n.Name == resource })
	case strings.Contains(r.URL.Path, "/pods/") && len(a.pods) > 0:
		answerNamed(w, a.pods, func(p *corev1.Pod) bool { return strings.HasSuffix(r.URL.Path, p.Namespace+"/pods/"+p.Name) })
	default:
		namespace := ""
		if len(parts) > 4 && parts[3] == "namespaces" {
			namespace = parts[4]
		}
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("%s is forbidden: User %q cannot list resource %q in namespace %q", resource, user, resource, namespace))
	}
}

func answerNamed[T any](w http.ResponseWriter, list []T, is func(*T) bool) {
	for i := range list {
		if is(&list[i]) {
			_ = json.NewEncoder(w).Encode(&list[i])
			return
		}
	}
	refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
}

func (a *signInAPI) may(user, resource, namespace string) bool {
	return a.rights[user+" "+resource+" *"] || a.rights[user+" "+resource+" "+namespace]
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

// signInCluster returns the lists that are kept current: a node with a pod of each of two namespaces, and pods that wait.
func signInCluster(t *testing.T) *webLists {
	t.Helper()
	node := signInNode()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		t.Fatal(err)
	}
	objects := []runtime.Object{
		&unstructured.Unstructured{Object: content}, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-0"}},
	}
	for _, name := range []string{"ml/train@node-0", "other-team/secret@node-0", "ml/waits-a@", "unseen-team/waits-b@"} {
		key, at, _ := strings.Cut(name, "@")
		namespace, pod, _ := strings.Cut(key, "/")
		made := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}
		made.Spec.NodeName, made.Status.Phase = at, corev1.PodPending
		made.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		objects = append(objects, made)
	}
	kinds := map[schema.GroupVersionResource]string{v1alpha1.GPUNodes(): "GPUNodeList"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, kinds, objects...)
	return newWebLists(t.Context(), client, client)
}

// signInNode returns a GPUNode with two GPUs, which a pod of each of two namespaces holds. The second one drains.
func signInNode() *v1alpha1.GPUNode {
	node := &v1alpha1.GPUNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/v1alpha1", Kind: "GPUNode"}, ObjectMeta: metav1.ObjectMeta{Name: "node-0"}}
	for i, holder := range []string{"ml/train", "other-team/secret"} {
		namespace, pod, _ := strings.Cut(holder, "/")
		node.Status.Devices = append(node.Status.Devices, v1alpha1.GPUDevice{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, Product: "A100", Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/gpu"},
			Holders: []v1alpha1.Holder{{Kind: "Pod", Namespace: namespace, Pod: pod, PodUID: pod}},
		})
	}
	node.Status.Devices[1].Offered.Draining = "waits for other-team/secret to end"
	return node
}

// signInPage returns the page to which the users of an API server sign in.
func signInPage(t *testing.T, api *signInAPI) http.Handler {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	users := &webUsers{from: &sources{}, server: &rest.Config{Host: server.URL}, lists: signInCluster(t)}
	page, err := web.NewSignIn(t.Context(), web.SignInDeps{
		Who: users.who, Page: users.page, Source: "test", Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// checkTexts checks what a page has, and what it has not.
func checkTexts(t *testing.T, body string, has, hasNot []string) {
	t.Helper()
	for _, text := range has {
		if !strings.Contains(body, text) {
			t.Errorf("no %q in %s", text, body)
		}
	}
	for _, text := range hasNot {
		if strings.Contains(body, text) {
			t.Errorf("%q in %s", text, body)
		}
	}
}

// TestSignedInUsers checks which names each user sees on the page to which they sign in, and that all but the lists that are kept current
// is asked with the user's own token.
func TestSignedInUsers(t *testing.T) {
	const ann = "system:serviceaccount:ml:ann"
	tests := map[string]struct {
		token  string
		status int
		has    []string
		hasNot []string
	}{
		"all rights":       {token: "t-admin", status: 200, has: []string{"train", "secret", "waits-a", "waits-b", "unseen-team"}},
		"one namespace":    {token: "t-ann", status: 200, has: []string{"train", "waits-a", "may not list"}, hasNot: []string{"secret", "other-team", "waits-b", "unseen-team"}},
		"GPUNodes only":    {token: "t-viewer", status: 200, has: []string{"node-0", "may not list", "nodes is forbidden"}, hasNot: []string{"train", "secret", "waits-a", "waits-b", "other-team", "unseen-team"}},
		"no rights":        {token: "t-nothing", status: 502, has: []string{"gpunodes is forbidden"}, hasNot: []string{"node-0", "train", "secret"}},
		"an unknown token": {token: "guess", status: 401, hasNot: []string{"node-0"}},
		"the anonymous":    {token: "t-anonymous", status: 401, hasNot: []string{"node-0"}},
		"an empty token":   {token: "", status: 401, hasNot: []string{"node-0"}},
		"two at once":      {token: "t-ann t-admin", status: 401, hasNot: []string{"node-0"}},
		"a line after one": {token: "t-ann\nX: y", status: 401, hasNot: []string{"node-0"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := &signInAPI{
				users: map[string]string{"t-admin": "admin", "t-ann": ann, "t-viewer": "viewer", "t-nothing": "nothing", "t-anonymous": "system:anonymous"},
				rights: map[string]bool{
					"admin gpunodes *": true, "admin nodes *": true, "admin pods *": true,
					ann + " gpunodes *": true, ann + " nodes *": true, ann + " pods ml": true,
					"viewer gpunodes *": true,
				},
			}
			page := signInPage(t, api)
			var both string
			for _, path := range []string{"/api/v1/board", "/"} {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Header["Authorization"] = []string{"Bearer " + tc.token}
				answer := httptest.NewRecorder()
				page.ServeHTTP(answer, r)
				body := answer.Body.String()
				if answer.Code != tc.status {
					t.Fatalf("%s: status %d, want %d: %s", path, answer.Code, tc.status, body)
				}
				both += body
			}
			checkTexts(t, both, tc.has, tc.hasNot)
			api.mu.Lock()
			defer api.mu.Unlock()
			if user := api.users[tc.token]; slices.ContainsFunc(api.seen, func(request string) bool { return !strings.HasPrefix(request, user+" ") }) {
				t.Errorf("requests with other tokens: %v", api.seen)
			}
		})
	}
}

// TestSignedInTrace: a trace is read with the user's own rights, and never from the files of the machine that serves the page.
func TestSignedInTrace(t *testing.T) {
	page := signInPage(t, &signInAPI{users: map[string]string{"t-ann": "ann"}})
	for _, path := range []string{"/pod/ml/train", "/gpu/GPU-0", "/gpu/claim%2Fml%2Fx"} {
		answer := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer t-ann")
		page.ServeHTTP(answer, r)
		if body := answer.Body.String(); !strings.Contains(body, "is forbidden: User &#34;ann&#34;") || strings.Contains(body, "node-0") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// TestManyNamespaces: a user with rights in one of very many namespaces sees the names there, and a note that not all were asked about.
func TestManyNamespaces(t *testing.T) {
	const zoe = "system:serviceaccount:z-zoe:zoe"
	api := &signInAPI{users: map[string]string{"t-zoe": zoe}, rights: map[string]bool{zoe + " gpunodes *": true, zoe + " nodes *": true, zoe + " pods z-zoe": true}}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	node := signInNode()
	for i := range mostMay + 20 {
		namespace := fmt.Sprintf("team-%03d", i)
		if i == mostMay+19 {
			namespace = "z-zoe"
		}
		node.Status.Devices = append(node.Status.Devices, v1alpha1.GPUDevice{UUID: fmt.Sprint("GPU-of-", i), Holders: []v1alpha1.Holder{{Kind: "Pod", Namespace: namespace, Pod: "p-" + namespace, PodUID: namespace}}})
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, map[schema.GroupVersionResource]string{v1alpha1.GPUNodes(): "GPUNodeList"}, &unstructured.Unstructured{Object: content})
	users := &webUsers{from: &sources{}, server: &rest.Config{Host: server.URL}, lists: newWebLists(t.Context(), client, client)}
	page, err := users.page(t.Context(), "t-zoe", zoe)
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	body := answer.Body.String()
	checkTexts(t, body, []string{"p-z-zoe", "Whether you may list pods was asked for 200 namespaces; 22 more are shown without names"}, []string{"team-"})
}

// TestSignedInHolders: a trace of a GPU names its holders only to users who may list the pods of their namespaces, and says to others that
// there are some.
func TestSignedInHolders(t *testing.T) {
	const hidden = "in namespaces whose pods you may not list"
	tests := map[string]struct {
		rights string
		path   string
		has    []string
		hasNot []string
	}{
		"all, of one":          {rights: "pods *", path: "/gpu/GPU-0", has: []string{"pod ml/train"}, hasNot: []string{hidden}},
		"all, of the other":    {rights: "pods *", path: "/gpu/GPU-1", has: []string{"pod other-team/secret", "waits for other-team/secret"}, hasNot: []string{hidden}},
		"some, of one":         {rights: "pods ml", path: "/gpu/GPU-0", has: []string{"pod ml/train"}, hasNot: []string{hidden, "secret", "other-team"}},
		"some, of the other":   {rights: "pods ml", path: "/gpu/GPU-1", has: []string{"holders of GPU-1 " + hidden + ": 1"}, hasNot: []string{"train", "secret", "other-team"}},
		"none":                 {rights: "pods none", path: "/gpu/GPU-0", has: []string{"holders of GPU-0 " + hidden + ": 1"}, hasNot: []string{"train", "secret", "other-team", "GPU-1"}},
		"none, by the pod":     {rights: "pods none", path: "/pod/other-team/secret", has: []string{"is forbidden"}, hasNot: []string{"GPU-1", "node-0"}},
		"none, by the pod UID": {rights: "pods none", path: "/gpu/secret", hasNot: []string{"GPU-1", "node-0", "other-team"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := askAsAnn(t, &signInAPI{
				rights: map[string]bool{"ann gpunodes *": true, "ann nodes *": true, "ann " + tc.rights: true}, gpuNodes: []v1alpha1.GPUNode{*signInNode()},
			}, tc.path)
			checkTexts(t, body, tc.has, tc.hasNot)
		})
	}
}

func TestWebFlags(t *testing.T) {
	tests := map[string]struct {
		flags webFlags
		want  string
	}{
		"for this machine":                   {flags: webFlags{address: "127.0.0.1"}},
		"IPv6":                               {flags: webFlags{address: "::1", port: 8088}},
		"users through a forwarded port":     {flags: webFlags{address: "127.0.0.1", signIn: true}},
		"users":                              {flags: webFlags{address: "0.0.0.0", signIn: true, certFile: "a", keyFile: "b"}},
		"everybody":                          {flags: webFlags{address: "0.0.0.0"}, want: "everybody who reaches this machine would see what you may read"},
		"everybody, with TLS":                {flags: webFlags{address: "::", certFile: "a", keyFile: "b"}, want: "is for --sign-in"},
		"tokens as plain text":               {flags: webFlags{address: "10.0.0.7", signIn: true}, want: "tokens would cross the network as plain text"},
		"a name":                             {flags: webFlags{address: "localhost"}, want: "want an IP address"},
		"a port that is not there":           {flags: webFlags{address: "127.0.0.1", port: 65536}, want: "--port 65536"},
		"an address that only looks like it": {flags: webFlags{address: "127.0.0.1.example"}, want: "want an IP address"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.flags.check()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
