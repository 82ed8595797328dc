package uninstall

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	// parked is a key of the node selector that no Node has: the DaemonSet has no pods before the agents have ended.
	parked = v1alpha1.Group + "/uninstall-later"
	// driverAnnotation of the DaemonSet has the name of the DRA driver.
	driverAnnotation = v1alpha1.Group + "/dra-driver"
	// madeLabel is on a namespace that was made for the DaemonSet.
	madeLabel     = v1alpha1.Group + "/made-by"
	defaultDriver = "gpu.berth.dev"
	hostVolume    = "host"
	hostPath      = "/host"
)

// pathFlags are the flags of the agent that say where its files are. Of the others none matters, and some need an API server.
var pathFlags = []string{"kubelet-dir", "cdi-dir", "hook-dir", "state-dir", "persistent-dir", "mps-root"}

// prepareHosts makes the DaemonSet that cleans the nodes, without pods yet. From then on nothing depends on the agent's.
func (r *remover) prepareHosts(ctx context.Context) error {
	s := &r.found
	if !r.needsHosts() {
		return nil
	}
	if s.agent == nil && s.hosts != nil {
		return nil
	}
	if s.hosts != nil { // The release was installed again since: its agents have made files again.
		object := &unstructured.Unstructured{Object: map[string]any{"kind": "DaemonSet"}}
		object.SetNamespace(r.Namespace)
		object.SetName(Name)
		if err := r.remove(ctx, daemonSets(), object); err != nil {
			return err
		}
	}
	if !s.namespace {
		namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
		namespace.SetName(r.Namespace)
		namespace.SetLabels(map[string]string{madeLabel: Name, "pod-security.kubernetes.io/enforce": "privileged"})
		if _, err := r.Client.Resource(namespaces()).Create(ctx, namespace, metav1.CreateOptions{FieldManager: fieldManager}); err != nil {
			return fmt.Errorf("create namespace %s: %w", r.Namespace, err)
		}
		r.print("created Namespace %s", r.Namespace)
	}
	set, err := r.hostSet()
	if err != nil {
		return err
	}
	if set.Spec.Template.Spec.ServiceAccountName, err = r.account(ctx, set); err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		return err
	}
	if _, err := r.Client.Resource(daemonSets()).Namespace(r.Namespace).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("create DaemonSet %s/%s: %w", r.Namespace, Name, err)
	}
	s.hosts = set
	r.print("created DaemonSet %s/%s, which cleans the nodes after the agents have ended", r.Namespace, Name)
	return nil
}

// account returns the service account of a DaemonSet, or none when it does not exist, as after the release was removed.
func (r *remover) account(ctx context.Context, set *appsv1.DaemonSet) (string, error) {
	name := set.Spec.Template.Spec.ServiceAccountName
	if name == "" {
		return "", nil
	}
	found, err := r.get(ctx, resource("", "v1", "serviceaccounts"), r.Namespace, name)
	if found == nil {
		return "", err
	}
	return name, nil
}

// outlivesRelease tells whether pods with a priority class can be created after the release has gone: those of the system are always there.
func outlivesRelease(class string) bool { return class == "" || strings.HasPrefix(class, "system-") }

// hostSet returns the DaemonSet that cleans the nodes: on those of the agent's, or else on those that have a GPUNode.
func (r *remover) hostSet() (*appsv1.DaemonSet, error) {
	image, err := r.image()
	if err != nil {
		return nil, err
	}
	var spec corev1.PodSpec
	var agent corev1.Container
	if r.found.agent != nil {
		from := r.found.agent.Spec.Template.Spec
		spec = corev1.PodSpec{NodeSelector: from.NodeSelector, Affinity: from.Affinity, ImagePullSecrets: from.ImagePullSecrets,
			ServiceAccountName: from.ServiceAccountName, RuntimeClassName: from.RuntimeClassName}
		if outlivesRelease(from.PriorityClassName) {
			spec.PriorityClassName = from.PriorityClassName
		}
		agent = agentContainer(&from)
	} else {
		spec, agent = r.withoutAgent()
	}
	spec.HostPID = true
	spec.AutomountServiceAccountToken = new(false)
	spec.TerminationGracePeriodSeconds = new(int64(5))
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	selector := map[string]string{parked: "true"}
	maps.Copy(selector, spec.NodeSelector)
	spec.NodeSelector = selector
	args := append([]string{"uninstall", "--standalone", "--on-host", "--hold", "--host-root=" + hostPath, "--dra-driver=" + r.found.driver}, pathArgs(agent.Args)...)
	propagation := corev1.MountPropagationHostToContainer
	spec.Containers = []corev1.Container{{
		Name: "uninstall", Image: image, ImagePullPolicy: agent.ImagePullPolicy, Command: agent.Command, Args: args, Resources: agent.Resources,
		Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
		// It writes files of root on the host, in directories that SELinux or AppArmor may protect.
		SecurityContext:          &corev1.SecurityContext{Privileged: new(true), ReadOnlyRootFilesystem: new(true)},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5, ProbeHandler: corev1.ProbeHandler{
			Exec: &corev1.ExecAction{Command: []string{program(agent), "probe", "clean"}}}},
		// The only mount: the kubelet would make the folders of the agent's mounts again.
		VolumeMounts: []corev1.VolumeMount{{Name: hostVolume, MountPath: hostPath, MountPropagation: &propagation}},
	}}
	spec.Volumes = []corev1.Volume{{Name: hostVolume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
	name := map[string]string{labelName: Name}
	set := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}}
	set.Namespace, set.Name = r.Namespace, Name
	set.Labels = map[string]string{labelName: Name, labelPartOf: "berth"}
	set.Annotations = map[string]string{driverAnnotation: r.found.driver}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: name}
	set.Spec.Template.Labels = name
	set.Spec.Template.Spec = spec
	return set, nil
}

// withoutAgent returns what else the agent's DaemonSet says, from the GPUStack and the GPUNodes. Without GPUNodes it is on each node.
func (r *remover) withoutAgent() (spec corev1.PodSpec, agent corev1.Container) {
	stack := r.found.stackSpec()
	for _, secret := range stack.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	agent.ImagePullPolicy = corev1.PullPolicy(stack.PullPolicy)
	for flag, dir := range map[string]string{"kubelet-dir": stack.Host.KubeletDir, "cdi-dir": stack.Host.CDIDir, "hook-dir": stack.Host.HookDir} {
		if dir != "" {
			agent.Args = append(agent.Args, "--"+flag+"="+dir)
		}
	}
	slices.Sort(agent.Args)
	if len(r.found.nodes) == 0 {
		spec.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"}
		return spec, agent
	}
	var terms []corev1.NodeSelectorTerm
	for i := range r.found.nodes {
		// A field may have one value per term.
		terms = append(terms, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{r.found.nodes[i].Name}}}})
	}
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	return spec, agent
}

// agentContainer returns the container of the agent.
func agentContainer(spec *corev1.PodSpec) corev1.Container {
	for i := range spec.Containers {
		if name := spec.Containers[i].Name; name == "agent" || name == "uninstall" {
			return spec.Containers[i]
		}
	}
	if len(spec.Containers) > 0 {
		return spec.Containers[0]
	}
	return corev1.Container{}
}

// program returns the path of berth-agent in its image.
func program(agent corev1.Container) string {
	if len(agent.Command) > 0 {
		return agent.Command[0]
	}
	return "/berth-agent"
}

// pathArgs returns the arguments that say where the agent's files are.
func pathArgs(args []string) []string {
	var found []string
	for i, arg := range args {
		name, _, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || !slices.Contains(pathFlags, name) {
			continue
		}
		found = append(found, arg)
		if !joined && i+1 < len(args) {
			found = append(found, args[i+1])
		}
	}
	return found
}

// driverOf returns the name of the DRA driver of an agent's pod: the last part of the path of the volume with its sockets.
func driverOf(spec *corev1.PodSpec) string {
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.Name == "plugins" && v.HostPath != nil && path.Base(path.Dir(v.HostPath.Path)) == "plugins" {
			return path.Base(v.HostPath.Path)
		}
	}
	return ""
}

// releaseHosts lets the pods of the DaemonSet start.
func (r *remover) releaseHosts(ctx context.Context) error {
	object, err := r.get(ctx, daemonSets(), r.Namespace, Name)
	if err != nil {
		return err
	}
	if object == nil {
		return fmt.Errorf("the DaemonSet %s/%s was deleted by another program: run the command again", r.Namespace, Name)
	}
	var set appsv1.DaemonSet
	if err := decode(object, &set); err != nil {
		return err
	}
	change := map[string]any{}
	if _, waits := set.Spec.Template.Spec.NodeSelector[parked]; waits {
		change["nodeSelector"] = map[string]any{parked: nil}
	}
	account, err := r.account(ctx, &set)
	if err != nil {
		return err
	}
	if account != set.Spec.Template.Spec.ServiceAccountName {
		change["serviceAccountName"], change["serviceAccount"] = nil, nil
	}
	if !outlivesRelease(set.Spec.Template.Spec.PriorityClassName) {
		change["priorityClassName"] = nil
	}
	if image := agentContainer(&set.Spec.Template.Spec).Image; r.Image != "" && image != r.Image {
		containers := slices.Clone(set.Spec.Template.Spec.Containers)
		containers[0].Image = r.Image
		change["containers"] = containers
	}
	if len(change) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": change}}})
	if err != nil {
		return err
	}
	_, err = r.Client.Resource(daemonSets()).Namespace(r.Namespace).Patch(ctx, Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("start the pods of the DaemonSet %s/%s: %w", r.Namespace, Name, err)
	}
	return nil
}

// deleteHosts deletes the DaemonSet when all nodes are clean.
func (r *remover) deleteHosts(ctx context.Context) error {
	if err := r.removeAll(ctx, daemonSets(), r.Namespace, ofBerth, named(Name)); err != nil {
		return err
	}
	return r.awaitEnd(ctx, labelName+"="+Name, "the pods that clean the nodes")
}

// deleteNamespace deletes the namespace if it was made for the DaemonSet.
func (r *remover) deleteNamespace(ctx context.Context) error {
	return r.removeAll(ctx, namespaces(), "", madeLabel+"="+Name, named(r.Namespace))
}

// nodeOf returns the node of a pod, also of one that a DaemonSet made and that is not scheduled yet.
func nodeOf(pod *corev1.Pod) string {
	name := pod.Spec.NodeName
	if a := pod.Spec.Affinity; name == "" && a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
					name = field.Values[0]
				}
			}
		}
	}
	return cmp.Or(name, "(none)")
}
