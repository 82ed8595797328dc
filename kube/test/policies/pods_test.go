package policies

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The users of the API server that the tables name.
const (
	tenant               = "tenant"
	daemonSetController  = "system:serviceaccount:kube-system:daemon-set-controller"
	replicaSetController = "system:serviceaccount:kube-system:replicaset-controller"
	operator             = "system:serviceaccount:berth-system:berth-operator"
)

// podOf is a pod with further fields of its spec and of its container, each as JSON that ends in a comma.
func podOf(spec, container string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{` + spec + `"containers":[{` + container + `"name":"main","image":"example.com/x"}]}}`
}

// check compares an answer with the text of the refusal by berth-privileged-pods; empty wants the request allowed.
func check(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-privileged-pods") || !strings.Contains(err.Error(), want)):
		t.Errorf("the answer is %v, want a refusal with %q", err, want)
	}
}

// TestPrivilegedPods checks which pods may be created in the namespace of the release.
func TestPrivilegedPods(t *testing.T) {
	p := newPlugin(t)
	security := func(fields string) string { return `"securityContext":{` + fields + `},` }
	capability := func(name string) string { return security(`"capabilities":{"add":["` + name + `"]}`) }
	account := func(name string) string { return podOf(`"serviceAccountName":"`+name+`",`, "") }
	annotated := func(profile string) string {
		return strings.Replace(podOf("", ""), `"name":"x"`, `"name":"x","annotations":{"container.apparmor.security.beta.kubernetes.io/main":"`+profile+`"}`, 1)
	}
	hostPath := podOf(`"volumes":[{"name":"v","hostPath":{"path":"/"}}],`, "")
	privileged := podOf("", security(`"privileged":true`))
	for name, tc := range map[string]struct {
		user      string
		namespace string
		pod       string
		// want is part of the refusal; empty if there is none.
		want string
	}{
		"privileged":                         {pod: privileged, want: "privileged container main;"},
		"host path":                          {pod: hostPath, want: "hostPath /;"},
		"host's processes":                   {pod: podOf(`"hostPID":true,`, ""), want: "this one has: hostPID;"},
		"host's network":                     {pod: podOf(`"hostNetwork":true,`, ""), want: "hostNetwork"},
		"host's IPC":                         {pod: podOf(`"hostIPC":true,`, ""), want: "hostIPC"},
		"several":                            {pod: podOf(`"hostPID":true,"hostIPC":true,`, security(`"privileged":true`)), want: "hostPID, hostIPC, privileged container main;"},
		"SYS_ADMIN":                          {pod: podOf("", capability("SYS_ADMIN")), want: "capabilities of container main"},
		"ALL":                                {pod: podOf("", capability("ALL")), want: "capabilities of container main"},
		"a capability in small letters":      {pod: podOf("", capability("sys_admin")), want: "capabilities of container main"},
		"/proc":                              {pod: podOf(`"hostUsers":false,`, security(`"procMount":"Unmasked"`)), want: "procMount of container main"},
		"init container":                     {pod: podOf(`"initContainers":[{"name":"first","image":"example.com/x","securityContext":{"privileged":true}}],`, ""), want: "privileged container first"},
		"host port":                          {pod: podOf("", `"ports":[{"containerPort":80,"hostPort":9835}],`), want: "host port of container main"},
		"host port of an init container":     {pod: podOf(`"initContainers":[{"name":"first","image":"i","ports":[{"containerPort":80,"hostPort":80}]}],`, ""), want: "host port of container first"},
		"probe of another host":              {pod: podOf("", `"livenessProbe":{"httpGet":{"host":"127.0.0.1","port":10249}},`), want: "a probe or hook of container main to another host"},
		"TCP probe of another host":          {pod: podOf("", `"readinessProbe":{"tcpSocket":{"host":"127.0.0.1","port":22}},`), want: "a probe or hook of container main to another host"},
		"hook to another host":               {pod: podOf("", `"lifecycle":{"preStop":{"httpGet":{"host":"169.254.169.254","port":80}}},`), want: "a probe or hook of container main to another host"},
		"SELinux type of the pod":            {pod: podOf(security(`"seLinuxOptions":{"type":"spc_t"}`), ""), want: "seLinuxOptions of the pod;"},
		"SELinux type":                       {pod: podOf("", security(`"seLinuxOptions":{"type":"spc_t"}`)), want: "seLinuxOptions of container main;"},
		"SELinux user":                       {pod: podOf("", security(`"seLinuxOptions":{"user":"system_u"}`)), want: "seLinuxOptions of container main;"},
		"SELinux role":                       {pod: podOf("", security(`"seLinuxOptions":{"role":"system_r"}`)), want: "seLinuxOptions of container main;"},
		"no AppArmor for the pod":            {pod: podOf(security(`"appArmorProfile":{"type":"Unconfined"}`), ""), want: "appArmorProfile of the pod;"},
		"no AppArmor":                        {pod: podOf("", security(`"appArmorProfile":{"type":"Unconfined"}`)), want: "appArmorProfile of container main;"},
		"no AppArmor by annotation":          {pod: annotated("unconfined"), want: "annotation container.apparmor.security.beta.kubernetes.io/main"},
		"no seccomp for the pod":             {pod: podOf(security(`"seccompProfile":{"type":"Unconfined"}`), ""), want: "seccompProfile of the pod;"},
		"no seccomp":                         {pod: podOf("", security(`"seccompProfile":{"type":"Unconfined"}`)), want: "seccompProfile of container main;"},
		"two profiles":                       {pod: podOf("", security(`"seccompProfile":{"type":"Unconfined"},"appArmorProfile":{"type":"Unconfined"}`)), want: "seccompProfile of container main, appArmorProfile of container main;"},
		"Windows' host for the pod":          {pod: podOf(security(`"windowsOptions":{"hostProcess":true}`), ""), want: "hostProcess of the pod;"},
		"Windows' host":                      {pod: podOf("", security(`"windowsOptions":{"hostProcess":true}`)), want: "hostProcess of container main;"},
		"sysctl":                             {pod: podOf(security(`"sysctls":[{"name":"kernel.msgmax","value":"1"}]`), ""), want: "sysctl kernel.msgmax;"},
		"agent's account":                    {pod: account("berth-agent"), want: "the account berth-agent;"},
		"agent's account by the old field":   {pod: podOf(`"serviceAccount":"berth-agent",`, ""), want: "the account berth-agent;"},
		"operator's account":                 {pod: account("berth-operator"), want: "the account berth-operator;"},
		"scheduler's account":                {pod: account("berth-scheduler"), want: "the account berth-scheduler;"},
		"page's account":                     {pod: account("berth-web"), want: "the account berth-web;"},
		"operator's account, by a Job":       {user: "system:serviceaccount:kube-system:job-controller", pod: account("berth-operator"), want: "the account berth-operator;"},
		"agent's account, by a Deployment":   {user: replicaSetController, pod: account("berth-agent"), want: "the account berth-agent;"},
		"privileged, by a Deployment":        {user: replicaSetController, pod: privileged, want: "privileged container main"},
		"operator's account, by itself":      {user: replicaSetController, pod: account("berth-operator")},
		"scheduler's account, by itself":     {user: replicaSetController, pod: account("berth-scheduler")},
		"page's account, by itself":          {user: replicaSetController, pod: account("berth-web")},
		"plain":                              {pod: podOf("", "")},
		"another account":                    {pod: account("berth-agents")},
		"NET_BIND_SERVICE":                   {pod: podOf("", capability("NET_BIND_SERVICE"))},
		"no host's processes":                {pod: podOf(`"hostPID":false,`, "")},
		"host's users, as pods have":         {pod: podOf(`"hostUsers":true,`, "")},
		"users of its own":                   {pod: podOf(`"hostUsers":false,`, "")},
		"container port":                     {pod: podOf("", `"ports":[{"containerPort":80}],`)},
		"probe":                              {pod: podOf("", `"livenessProbe":{"httpGet":{"port":80}},"lifecycle":{"preStop":{"exec":{"command":["x"]}}},`)},
		"SELinux level":                      {pod: podOf(security(`"seLinuxOptions":{"type":"container_t","level":"s0:c1,c2"}`), "")},
		"profiles of the runtime":            {pod: podOf(security(`"seccompProfile":{"type":"RuntimeDefault"},"appArmorProfile":{"type":"RuntimeDefault"}`), "")},
		"profile of the node":                {pod: podOf("", security(`"seccompProfile":{"type":"Localhost","localhostProfile":"x.json"}`))},
		"profile by annotation":              {pod: annotated("runtime/default")},
		"profile of the node, by annotation": {pod: annotated("localhost/x")},
		"safe sysctl":                        {pod: podOf(security(`"sysctls":[{"name":"net.ipv4.ip_unprivileged_port_start","value":"1"}]`), "")},
		"volumes":                            {pod: podOf(`"volumes":[{"name":"a","emptyDir":{}},{"name":"b","persistentVolumeClaim":{"claimName":"b"}}],`, "")},
		"a large pod":                        {pod: podOf(`"initContainers":[`+strings.Join(manyContainers(100), ",")+`],`, "")},
		"another namespace":                  {namespace: "default", pod: privileged},
		"DaemonSet controller":               {user: daemonSetController, pod: privileged},
		"DaemonSet, everything":              {user: daemonSetController, pod: podOf(`"hostPID":true,"volumes":[{"name":"v","hostPath":{"path":"/"}}],`, "")},
		"as a validation is": {user: operator, pod: strings.Replace(podOf(security(`"runAsNonRoot":true,"runAsUser":65532,"seccompProfile":{"type":"RuntimeDefault"}`),
			security(`"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},"seccompProfile":{"type":"RuntimeDefault"}`)), `"name":"x"`, `"name":"berth-validate-x"`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{user: tenant, namespace: namespace, pod: decode(t, tc.pod)}
			if tc.user != "" {
				r.user = tc.user
			}
			if tc.namespace != "" {
				r.namespace = tc.namespace
			}
			check(t, p.admit(t.Context(), r), tc.want)
		})
	}
}

// manyContainers returns containers with what the policy looks at: its cost has to stay below the API server's limit.
func manyContainers(count int) []string {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf(`{"name":"c%d","image":"example.com/x","ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"port":80}},`+
			`"securityContext":{"capabilities":{"add":["CHOWN","KILL","SETUID"]},"seccompProfile":{"type":"RuntimeDefault"},"seLinuxOptions":{"level":"s0"}}}`, i))
	}
	return all
}

// TestOwnPods checks that the pods of the chart's DaemonSets and Deployments are created by their controllers and by no other user.
func TestOwnPods(t *testing.T) {
	p := newPlugin(t)
	templates := map[string]corev1.PodTemplateSpec{}
	users := map[string]string{}
	for _, set := range documents[appsv1.DaemonSet](t, "DaemonSet") {
		templates[set.Name], users[set.Name] = set.Spec.Template, daemonSetController
	}
	for _, deployment := range documents[appsv1.Deployment](t, "Deployment") {
		templates[deployment.Name], users[deployment.Name] = deployment.Spec.Template, replicaSetController
	}
	if len(templates) != 5 {
		t.Fatalf("%d pod templates, want those of agent, mps, operator, scheduler and page", len(templates))
	}
	for name, template := range templates {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(&corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: template.ObjectMeta, Spec: template.Spec})
			if err != nil {
				t.Fatal(err)
			}
			pod := decode(t, string(text))
			check(t, p.admit(t.Context(), request{user: users[name], namespace: namespace, pod: pod}), "")
			check(t, p.admit(t.Context(), request{user: tenant, namespace: namespace, pod: pod}), "this one has: ")
		})
	}
}

// TestChangedPods checks what may be added to a pod that exists, and changed of it.
func TestChangedPods(t *testing.T) {
	p := newPlugin(t)
	const volume, debug = `"volumes":[{"name":"host","hostPath":{"path":"/"}},{"name":"tmp","emptyDir":{}}],`, `"ephemeralContainers":[{"name":"debug","image":"example.com/debug"}],`
	with := func(fields string) string { return strings.Replace(debug, `"name"`, fields+`"name"`, 1) }
	image := func(pod string) string { return strings.Replace(pod, "example.com/x", "example.com/other", 1) }
	labelled := func(pod string) string { return strings.Replace(pod, `"name":"x"`, `"name":"x","labels":{"a":"b"}`, 1) }
	privileged := podOf("", `"securityContext":{"privileged":true},`)
	for name, tc := range map[string]struct {
		user        string
		subresource string
		before      string
		after       string
		want        string
	}{
		"mount of the node's files": {subresource: "ephemeralcontainers", before: podOf(volume, ""),
			after: podOf(volume+with(`"volumeMounts":[{"name":"host","mountPath":"/host"}],`), ""), want: "hostPath /;"},
		"beside the node's files":     {subresource: "ephemeralcontainers", before: podOf(volume, ""), after: podOf(volume+debug, ""), want: "hostPath /;"},
		"host's processes":            {subresource: "ephemeralcontainers", before: podOf(`"hostPID":true,`, ""), after: podOf(`"hostPID":true,`+debug, ""), want: "hostPID;"},
		"host's network":              {subresource: "ephemeralcontainers", before: podOf(`"hostNetwork":true,`, ""), after: podOf(`"hostNetwork":true,`+debug, ""), want: "hostNetwork;"},
		"host's IPC":                  {subresource: "ephemeralcontainers", before: podOf(`"hostIPC":true,`, ""), after: podOf(`"hostIPC":true,`+debug, ""), want: "hostIPC;"},
		"beside a privileged one":     {subresource: "ephemeralcontainers", before: privileged, after: strings.Replace(privileged, `"spec":{`, `"spec":{`+debug, 1), want: "privileged container main;"},
		"token of the operator":       {subresource: "ephemeralcontainers", before: podOf(`"serviceAccountName":"berth-operator",`, ""), after: podOf(`"serviceAccountName":"berth-operator",`+debug, ""), want: "the account berth-operator;"},
		"privileged":                  {subresource: "ephemeralcontainers", before: podOf("", ""), after: podOf(with(`"securityContext":{"privileged":true},`), ""), want: "privileged container debug;"},
		"SYS_PTRACE":                  {subresource: "ephemeralcontainers", before: podOf("", ""), after: podOf(with(`"securityContext":{"capabilities":{"add":["SYS_PTRACE"]}},`), ""), want: "capabilities of container debug;"},
		"no seccomp":                  {subresource: "ephemeralcontainers", before: podOf("", ""), after: podOf(with(`"securityContext":{"seccompProfile":{"type":"Unconfined"}},`), ""), want: "seccompProfile of container debug;"},
		"plain":                       {subresource: "ephemeralcontainers", before: podOf("", ""), after: podOf(debug, "")},
		"second one":                  {subresource: "ephemeralcontainers", before: podOf(debug, ""), after: podOf(`"ephemeralContainers":[{"name":"debug","image":"example.com/debug"},{"name":"two","image":"i"}],`, "")},
		"image of a privileged pod":   {before: privileged, after: image(privileged), want: "nor its images be changed"},
		"image beside the host":       {before: podOf(volume, ""), after: image(podOf(volume, "")), want: "hostPath /;"},
		"image of the operator":       {before: podOf(`"serviceAccountName":"berth-operator",`, ""), after: image(podOf(`"serviceAccountName":"berth-operator",`, "")), want: "the account berth-operator;"},
		"init image":                  {before: podOf(volume+`"initContainers":[{"name":"i","image":"a"}],`, ""), after: podOf(volume+`"initContainers":[{"name":"i","image":"b"}],`, ""), want: "hostPath /;"},
		"image, by the ReplicaSet":    {user: replicaSetController, before: podOf(volume, ""), after: image(podOf(volume, "")), want: "hostPath /;"},
		"image of a plain pod":        {before: podOf("", ""), after: image(podOf("", ""))},
		"label of a privileged pod":   {before: privileged, after: labelled(privileged)},
		"finalizer by the controller": {user: daemonSetController, before: podOf(volume, ""), after: labelled(podOf(volume, ""))},
		"status":                      {subresource: "status", before: privileged, after: labelled(privileged)},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{user: tenant, namespace: namespace, subresource: tc.subresource, pod: decode(t, tc.after), before: decode(t, tc.before)}
			if tc.user != "" {
				r.user = tc.user
			}
			check(t, p.admit(t.Context(), r), tc.want)
		})
	}
}
