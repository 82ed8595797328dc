package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// sectionsOf returns the tables of a manifest: one per role, and one per program that runs on nodes.
func sectionsOf(manifest []byte) ([]section, error) {
	var all []section
	for decoder := yaml.NewDecoder(bytes.NewReader(manifest)); ; {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		object := document.Content[0]
		s, err := sectionOf(object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", text(object, "kind"), text(object, "metadata", "name"), err)
		}
		if s != nil {
			all = append(all, *s)
		}
	}
}

// sectionOf returns the table of an object, or nil for one that gives no right.
func sectionOf(object *yaml.Node) (*section, error) {
	name := text(object, "metadata", "name")
	switch kind := text(object, "kind"); kind {
	case "ClusterRole", "Role":
		title := "Rights in the API: " + kind + " " + name
		if namespace := text(object, "metadata", "namespace"); namespace != "" {
			title += " in the namespace " + namespace
		}
		rows, err := rules(at(object, "rules"))
		return &section{title, []string{"API group", "resources", "verbs", "why"}, rows}, err
	case "DaemonSet", "Deployment":
		rows, err := privileges(at(object, "spec", "template", "spec"))
		return &section{"On the node: " + kind + " " + name, []string{"privilege", "why"}, rows}, err
	case "ServiceAccount", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Service", "NetworkPolicy", "ResourceQuota", "PriorityClass", "PodDisruptionBudget", "PodMonitor", "PrometheusRule",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		return nil, nil
	default:
		return nil, errors.New("this kind is not known: say here whether it gives a right")
	}
}

// forbidden are resources of which no component may have these verbs.
func forbidden(group, resource string, verbs []string) string {
	write := []string{"create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "*"}
	var never []string
	switch {
	case group == "rbac.authorization.k8s.io" || group == "*" || resource == "*":
		never = write
	case group == "" && resource == "secrets":
		never = append(write, "list", "watch")
	}
	for _, verb := range verbs {
		if slices.Contains(never, verb) || verb == "*" {
			return fmt.Sprintf("no component may %s %s of the API group %q", verb, resource, group)
		}
	}
	return ""
}

// rules returns the rows of a role.
func rules(list *yaml.Node) ([][]string, error) {
	if list == nil {
		return nil, errors.New("the role has no rules")
	}
	var rows [][]string
	for _, rule := range list.Content {
		groups, resources, verbs := words(at(rule, "apiGroups")), words(at(rule, "resources")), words(at(rule, "verbs"))
		for _, group := range groups {
			for _, resource := range resources {
				if why := forbidden(group, resource, verbs); why != "" {
					return nil, errors.New(why)
				}
			}
		}
		key, value := pair(rule, "verbs")
		if value == nil {
			return nil, fmt.Errorf("line %d: the rule has no verbs", rule.Line)
		}
		why := sentence(value.LineComment, key.FootComment, value.FootComment)
		if why == "" {
			return nil, fmt.Errorf("line %d: %s of %s without a reason: write it as a comment behind the verbs", value.Line,
				strings.Join(verbs, ", "), strings.Join(resources, ", "))
		}
		what := code(resources...)
		if names := words(at(rule, "resourceNames")); len(names) > 0 {
			what += " named " + named(names)
		}
		if slices.Equal(groups, []string{""}) {
			groups = []string{"core"}
		}
		rows = append(rows, []string{strings.Join(groups, ", "), what, strings.Join(verbs, ", "), why})
	}
	return rows, nil
}

// mostNames is how many names a row lists.
const mostNames = 4

// named returns names as code; of many only the first.
func named(names []string) string {
	if len(names) <= mostNames {
		return code(names...)
	}
	return fmt.Sprintf("%s and %d more", code(names[:mostNames]...), len(names)-mostNames)
}

// table collects the rows of a pod. After an error it adds none.
type table struct {
	rows [][]string
	err  error
}

func (t *table) add(what string, line int, comment string) {
	why := sentence(comment)
	if t.err == nil && why == "" {
		t.err = fmt.Errorf("line %d: %s without a reason: write it as a comment above it", line, what)
	}
	if t.err == nil {
		t.rows = append(t.rows, []string{what, why})
	}
}

// addTrue adds those fields of an object that are true.
func (t *table) addTrue(object *yaml.Node, names ...string) {
	for _, name := range names {
		if key, value := pair(object, name); value != nil && value.Value == "true" {
			t.add(code(name), key.Line, key.HeadComment)
		}
	}
}

// privileges returns the rows of a pod: what it has beyond the level "baseline" of the Pod Security Standards.
func privileges(pod *yaml.Node) ([][]string, error) {
	t := &table{}
	t.addTrue(pod, "hostPID", "hostIPC", "hostNetwork")
	paths := map[string]string{}
	for _, volume := range items(pod, "volumes") {
		paths[text(volume, "name")] = text(volume, "hostPath", "path")
	}
	for _, container := range append(items(pod, "containers"), items(pod, "initContainers")...) {
		t.addTrue(at(container, "securityContext"), "privileged")
		if key, value := pair(at(container, "securityContext", "capabilities"), "add"); value != nil {
			t.add("the capabilities "+code(words(value)...), key.Line, key.HeadComment)
		}
		for _, mount := range items(container, "volumeMounts") {
			if path := paths[text(mount, "name")]; path != "" {
				t.add(mountText(path, mount), mount.Line, mount.HeadComment)
			}
		}
	}
	return t.rows, t.err
}

// mountText describes the mount of a path of the host.
func mountText(path string, mount *yaml.Node) string {
	what := "the host's " + code(path)
	if text(mount, "readOnly") == "true" {
		what += ", read only"
	}
	if propagation := text(mount, "mountPropagation"); propagation != "" {
		what += ", " + propagation
	}
	return what
}
