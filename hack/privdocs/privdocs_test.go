package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPage checks that the page is that of the templates.
func TestPage(t *testing.T) {
	want, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "docs", "privileges.md"))
	if err != nil || string(got) != want {
		t.Errorf("docs/privileges.md is not what the templates say (run make generate): %v", err)
	}
}

const role = "kind: ClusterRole\nmetadata: {name: x}\nrules:\n- apiGroups: [GROUP]\n  resources: [RESOURCE]\n  verbs: [VERBS]  # because\n"

// set is a DaemonSet with a pod's fields and a container's fields, each a list of lines.
func set(pod, container string) string {
	indent := func(text string, by int) (out string) {
		for line := range strings.Lines(text) {
			out += strings.Repeat(" ", by) + line
		}
		return out
	}
	return "kind: DaemonSet\nmetadata: {name: x}\nspec:\n  template:\n    spec:\n" + indent(pod, 6) + "      containers:\n      - name: c\n" + indent(container, 8)
}

// TestRefused has what must not be in a manifest.
func TestRefused(t *testing.T) {
	rule := func(group, resource, verbs string) string {
		return strings.NewReplacer("GROUP", group, "RESOURCE", resource, "VERBS", verbs).Replace(role)
	}
	const volume = "volumes:\n- {name: v, hostPath: {path: /etc}}\n"
	for name, tc := range map[string]struct{ manifest, want string }{
		"a right without a reason":         {strings.ReplaceAll(rule("apps", "deployments", "get"), "  # because", ""), "get of deployments without a reason"},
		"listing Secrets":                  {rule(`""`, "secrets", "get, list"), "no component may list secrets"},
		"writing Secrets":                  {rule(`""`, "secrets", "patch"), "no component may patch secrets"},
		"writing roles":                    {rule("rbac.authorization.k8s.io", "clusterroles", "create"), "no component may create clusterroles"},
		"everything":                       {rule(`"*"`, `"*"`, `"*"`), "no component may *"},
		"all verbs":                        {rule("apps", "deployments", `"*"`), "no component may *"},
		"writing all of a group":           {rule("apps", `"*"`, "update"), "no component may update *"},
		"no verbs":                         {"kind: Role\nmetadata: {name: x}\nrules:\n- apiGroups: [apps]\n  resources: [deployments]\n", "has no verbs"},
		"no rules":                         {"kind: Role\nmetadata: {name: x}\n", "has no rules"},
		"the host's PIDs without a reason": {set("hostPID: true\n", ""), "`hostPID` without a reason"},
		"privileged without a reason":      {set("", "securityContext: {privileged: true}\n"), "`privileged` without a reason"},
		"capability without a reason":      {set("", "securityContext: {capabilities: {add: [SYS_ADMIN]}}\n"), "`SYS_ADMIN` without a reason"},
		"a path without a reason":          {set(volume, "volumeMounts:\n- {name: v, mountPath: /x}\n"), "the host's `/etc` without a reason"},
		"an unknown kind":                  {"kind: Secret\nmetadata: {name: x}\n", "this kind is not known"},
		"no YAML":                          {"a: [", "did not find"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := sectionsOf([]byte(tc.manifest)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, %v, want an error with %q", got, err, tc.want)
			}
		})
	}
}

// TestRows has the forms of reasons.
func TestRows(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		want     []string
	}{
		"over two lines": {strings.ReplaceAll(strings.NewReplacer("GROUP", `""`, "RESOURCE", "pods", "VERBS", "get").Replace(role), "# because\n", "# because\n                 # of it\n"),
			[]string{"core", "`pods`", "get", "because of it"}},
		"with a name": {strings.NewReplacer("GROUP", `""`, "RESOURCE", "secrets]\n  resourceNames: [one", "VERBS", "get").Replace(role), []string{"core", "`secrets` named `one`", "get", "because"}},
		"a mount": {set("volumes:\n- {name: v, hostPath: {path: /etc}}\n- {name: w, emptyDir: {}}\n",
			"volumeMounts:\n# To read | to see.\n- {name: v, mountPath: /x, readOnly: true, mountPropagation: HostToContainer}\n- {name: w, mountPath: /tmp}\n"),
			[]string{"the host's `/etc`, read only, HostToContainer", `To read \| to see.`}},
		"the host's PIDs": {set("# To see them.\nhostPID: true\nhostIPC: false\n", ""), []string{"`hostPID`", "To see them."}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := sectionsOf([]byte(tc.manifest))
			if err != nil || len(got) != 1 || len(got[0].rows) != 1 || !slices.Equal(got[0].rows[0], tc.want) {
				t.Errorf("got %v, %v, want the row %q", got, err, tc.want)
			}
		})
	}
}
