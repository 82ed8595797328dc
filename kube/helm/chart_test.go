package helm_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The paths from this package.
const (
	chart  = "../../charts/berth"
	golden = "../../charts/testdata/golden"
	wrong  = "../../charts/testdata/wrong"
)

// release is the namespace and the name of the release in each test.
const release = "berth-system"

var update = flag.Bool("update", false, "write the renderings instead of comparing them")

// helm returns the path of Helm, which it builds the first time.
var helm = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "tool", "-n", "helm").Output()
	return strings.TrimSpace(string(out)), err
})

// template renders the chart. On failure the error has what Helm printed.
func template(t *testing.T, namespace string, values ...string) (string, error) {
	t.Helper()
	return templateOf(t, chart, namespace, values...)
}

// templateOf is template for the chart in a folder.
func templateOf(t *testing.T, folder, namespace string, values ...string) (string, error) {
	t.Helper()
	var args []string
	for _, file := range values {
		args = append(args, "--values", file)
	}
	return render(t, folder, namespace, args...)
}

// templateWith is template with arguments of Helm.
func templateWith(t *testing.T, namespace string, further ...string) (string, error) {
	t.Helper()
	return render(t, chart, namespace, further...)
}

// render renders the chart in a folder with arguments of Helm.
func render(t *testing.T, folder, namespace string, further ...string) (string, error) {
	t.Helper()
	path, err := helm()
	if err != nil {
		t.Fatalf("build helm: %v", err)
	}
	args := append([]string{"template", "berth", folder, "--namespace", namespace}, further...)
	var out, failure bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, failure.String())
	}
	return out.String(), nil
}

// objects returns the documents of a rendering, without empty ones.
func objects(rendered string) []string {
	var all []string
	for _, document := range regexp.MustCompile(`(?m)^---\n`).Split(rendered, -1) {
		// A template without content leaves a comment with its path.
		if regexp.MustCompile(`(?m)^kind:`).MatchString(document) {
			all = append(all, document)
		}
	}
	return all
}

// name returns kind, namespace and name of an object.
func name(object string) string {
	first := func(pattern string) string {
		return strings.TrimSpace(strings.Join(regexp.MustCompile(pattern).FindStringSubmatch(object), "\n"))
	}
	parts := strings.Split(first(`(?m)^kind: (\S+)`)+"\n"+first(`(?m)^  name: (\S+)`)+"\n"+first(`(?m)^  namespace: (\S+)`), "\n")
	values := []string{}
	for i := 1; i < len(parts); i += 2 {
		values = append(values, parts[i])
	}
	return strings.Join(values, " ")
}

// TestRenderings compares the chart with what it rendered when a person last looked: go test . -update. The golden of everything is whole,
// since other tests read the manifests from it. That of the default values has the difference from it, and the others those from both.
func TestRenderings(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(golden, "*.values.yaml"))
	if err != nil || len(files) < 13 {
		t.Fatalf("values files: %v, %v; want 13", files, err)
	}
	whole := func(title string) string {
		text, err := template(t, release, filepath.Join(golden, title+".values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	compare := func(t *testing.T, path, got string) {
		t.Helper()
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(text) {
			t.Errorf("%s differs from what the chart renders: go test -C kube/helm . -update, and look at the difference", path)
		}
	}
	text := whole("everything")
	compare(t, filepath.Join(golden, "everything.yaml"), text)
	everything, defaults := newRendering("everything", text), newRendering("default", whole("default"))
	for _, file := range files {
		base := strings.TrimSuffix(filepath.Base(file), ".values.yaml")
		if base == everything.title {
			continue
		}
		t.Run(base, func(t *testing.T) {
			r, bases := newRendering(base, whole(base)), []rendering{defaults, everything}
			if base == defaults.title {
				bases = []rendering{everything}
			}
			got := r.difference(t, bases...)
			compare(t, filepath.Join(golden, base+".diff"), got)
			if !maps.Equal(rebuild(t, got, bases...), r.objects) || !sameOrder(r, bases[0]) {
				t.Errorf("the difference and its bases do not have all of the rendering, or its objects have another order")
			}
		})
	}
}

// TestConfigFiles checks that a file of NVIDIA's device plugin comes to the agents as it is, in the place of the configuration of its name,
// and beside the others.
func TestConfigFiles(t *testing.T) {
	const file = "../../docs/examples/config-nvidia-v1.yaml"
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		// texts are the names with the text of the file, in their order; others are the further configurations.
		texts  []string
		others []string
	}{
		"in the place of the default": {args: []string{"--set-file", "configFiles.default=" + file}, texts: []string{"default"}},
		"beside the default":          {args: []string{"--set-file", "configFiles.a100=" + file}, texts: []string{"a100"}, others: []string{"default"}},
		"alone":                       {args: []string{"--set", "configs.default=null", "--set-file", "configFiles.a100=" + file}, texts: []string{"a100"}},
		"several": {args: []string{"--set-file", "configFiles.t4=" + file, "--set-file", "configFiles.default=" + file, "--set", "configs.h100.gds=true"},
			texts: []string{"default", "t4"}, others: []string{"h100"}},
	}
	for title, tc := range tests {
		t.Run(title, func(t *testing.T) {
			rendered, err := templateWith(t, release, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			all := objects(rendered)
			at := slices.IndexFunc(all, func(o string) bool { return name(o) == "ConfigMap berth-agent-config berth-system" })
			if at < 0 || !strings.Contains(rendered, "--config-map=berth-system/berth-agent-config") {
				t.Fatalf("no ConfigMap, or the agents do not read it:\n%s", rendered)
			}
			var texts, others []string
			for _, found := range regexp.MustCompile(`(?m)^  ("?)([a-z0-9]+)"?: (\|$|".*"$)`).FindAllStringSubmatch(all[at][strings.Index(all[at], "data:"):], -1) {
				if found[1] == "" {
					others = append(others, found[2])
					continue
				}
				if text, err := strconv.Unquote(found[3]); err != nil || text != string(want) {
					t.Errorf("%s differs from the file: %v\n%s", found[2], err, text)
				}
				texts = append(texts, found[2])
			}
			if !slices.Equal(texts, tc.texts) || !slices.Equal(others, tc.others) {
				t.Errorf("got the files %v and %v, want %v and %v", texts, others, tc.texts, tc.others)
			}
		})
	}
	for text, want := range map[string]string{
		"configFiles.a b=x": "configFiles.a b: the name cannot be the value of a node's label",
		"configs.default=null,configFiles.a=x,configFiles.b=x": "configs: none is named default",
		"configFiles.a.b=x": "configFiles",
	} {
		if _, err := templateWith(t, release, "--set", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// TestRefused checks that Helm refuses values that the schema or a template forbids, with the key.
func TestRefused(t *testing.T) {
	tests := map[string]struct {
		values    string
		namespace string
		// want are parts of the message.
		want []string
	}{
		"a namespace of Kubernetes":       {namespace: "kube-system", want: []string{"needs a namespace of its own", "--namespace berth-system"}},
		"the same port twice":             {values: "operator: {metricsPort: 8081}", want: []string{"operator.probePort: 8081", "operator.metricsPort"}},
		"metrics for a token without one": {values: "{metrics: {auth: kubernetes}, podMonitor: {enabled: true}}", want: []string{"podMonitor.tokenSecret.name"}},
		"another scheduler for all without it": {values: "scheduler: {replaceDefault: true}",
			want: []string{"scheduler.replaceDefault: true needs scheduler.enabled: true"}},
		"the root directory": {values: "host: {hookDir: //}", want: []string{`host.hookDir: "//" is not a directory below /`}},
		"a directory above":  {values: "host: {cdiDir: /var/../etc}", want: []string{"host.cdiDir"}},
		"no default": {values: "configs: {default: null, a: {}, b: {}}",
			want: []string{"configs: none is named default", "berth.dev/config"}},
		"a name that no label can have": {values: "configs: {'a b': {}}", want: []string{"configs.a b: the name cannot be the value of a node's label"}},
		"what the chart sets":           {values: "configs: {default: {kubeletDir: /k}}", want: []string{"configs.default.kubeletDir", "set host.kubeletDir"}},
		"DRA without its rights": {values: "{rights: {dra: false}, configs: {default: {gpus: [{exclude: true}, {allocation: {api: auto}}]}}}",
			want: []string{"configs.default.gpus[1].allocation.api: auto needs rights.dra: true"}},
		"labels without their rights": {values: "configs: {default: {labels: {output: nodeFeature}}}",
			want: []string{"configs.default.labels.output: nodeFeature needs rights.nodeFeature: true"}},
		"a taint without its right": {values: "configs: {default: {taintUnhealthy: true}}",
			want: []string{"configs.default.taintUnhealthy: true needs rights.taintUnhealthy: true"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(tc.values), 0o600); err != nil {
				t.Fatal(err)
			}
			if tc.namespace == "" {
				tc.namespace = release
			}
			_, err := template(t, tc.namespace, file)
			if err == nil {
				t.Fatal("Helm accepts it")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message lacks %q: %v", want, err)
				}
			}
		})
	}
}

// TestWrongValues checks that Helm refuses each file of charts/testdata/wrong that says what Helm prints.
func TestWrongValues(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(wrong, "*.yaml"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d wrong files, %v; want 20", len(files), err)
	}
	refused := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, ok := strings.CutPrefix(strings.SplitN(string(text), "\n", 2)[0], "# want: ")
		if !ok {
			continue // berth values check alone finds it.
		}
		refused++
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := template(t, release, file)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Helm says %v, want %q", err, want)
			}
		})
	}
	if refused < 12 {
		t.Errorf("Helm refuses %d files, want 12", refused)
	}
}

// TestOtherRelease checks what Helm says beside what another release has made: how to upgrade or remove it, or how to install it again
// where nothing of it is in its namespace, so that Helm knows neither an upgrade nor an uninstallation of it.
func TestOtherRelease(t *testing.T) {
	role := func(release string) string {
		return `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"berth-agent","annotations":{"meta.helm.sh/release-name":"` +
			release + `","meta.helm.sh/release-namespace":"gpus"}}}`
	}
	const (
		namespace = `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"gpus"},"status":{"phase":"Active"}}`
		ending    = `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"gpus"},"status":{"phase":"Terminating"}}`
		empty     = `{"kind":"List","apiVersion":"v1","items":[]}`
		record    = `{"kind":"List","apiVersion":"v1","items":[{"kind":"%s","apiVersion":"v1","metadata":{"name":"sh.helm.release.v1.mine.v3","namespace":"gpus"}}]}`
		others    = `{"kind":"List","apiVersion":"v1","items":[{"kind":"Secret","apiVersion":"v1","metadata":{"name":"sh.helm.release.v1.mine.too.v1","namespace":"gpus"}}]}`
		upgrade   = "helm upgrade mine CHART --namespace gpus\nor remove it first\n  helm uninstall mine --namespace gpus"
		install   = "helm install mine CHART --namespace gpus --create-namespace\n"
	)
	for title, tc := range map[string]struct {
		role       string
		namespace  string
		secrets    string
		configMaps string
		// want is part of the message.
		want string
	}{
		// What comes after the templates: this API server has no other kinds.
		"none":                     {want: "no matches for kind"},
		"a release":                {role("mine"), namespace, fmt.Sprintf(record, "Secret"), empty, upgrade},
		"a release in ConfigMaps":  {role("mine"), namespace, empty, fmt.Sprintf(record, "ConfigMap"), upgrade},
		"its namespace is deleted": {role("mine"), "", empty, empty, install},
		"its namespace goes":       {role("mine"), ending, fmt.Sprintf(record, "Secret"), empty, install},
		"its namespace is new":     {role("mine"), namespace, others, empty, install},
	} {
		t.Run(title, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				list := func(kind, plural string, namespaced bool) string {
					return fmt.Sprintf(`{"name":%q,"singularName":"","namespaced":%v,"kind":%q,"verbs":["get","list"]}`, plural, namespaced, kind)
				}
				answer := map[string]string{
					"/version": `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`,
					"/api":     `{"kind":"APIVersions","versions":["v1"]}`,
					"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"rbac.authorization.k8s.io",` +
						`"versions":[{"groupVersion":"rbac.authorization.k8s.io/v1","version":"v1"}]}]}`,
					"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[` + list("Namespace", "namespaces", false) + `,` +
						list("Secret", "secrets", true) + `,` + list("ConfigMap", "configmaps", true) + `]}`,
					"/apis/rbac.authorization.k8s.io/v1": `{"kind":"APIResourceList","groupVersion":"rbac.authorization.k8s.io/v1","resources":[` +
						list("ClusterRole", "clusterroles", false) + `]}`,
					"/apis/rbac.authorization.k8s.io/v1/clusterroles/berth-agent": tc.role,
					"/api/v1/namespaces/gpus":                                     tc.namespace,
					"/api/v1/namespaces/gpus/secrets":                             tc.secrets,
					"/api/v1/namespaces/gpus/configmaps":                          tc.configMaps,
				}[r.URL.Path]
				w.Header().Set("Content-Type", "application/json")
				if answer == "" {
					w.WriteHeader(http.StatusNotFound)
					answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
				}
				_, _ = io.WriteString(w, answer)
			}))
			defer server.Close()
			_, err := templateWith(t, release, "--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", server.URL)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Helm says %v, want %q", err, tc.want)
			}
		})
	}
}

// TestNothingOutsideHelm checks that the chart has no hook, which would hang when an image is missing, and no definitions in crds/, which
// Helm never updates.
func TestNothingOutsideHelm(t *testing.T) {
	err := filepath.WalkDir(chart, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if err == nil && entry.Name() == "crds" {
				t.Errorf("the chart has %s", path)
			}
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), "helm.sh/hook") {
			t.Errorf("%s has a hook", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
