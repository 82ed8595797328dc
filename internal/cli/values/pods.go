package values

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// agentFlags are the flags of the agent that the chart gives it.
func agentFlags() []string {
	return []string{"--host-root", "--kubelet-dir", "--cdi-dir", "--hook-dir", "--metrics-listen", "--stack", "--validation-files", "--config-map", "--config"}
}

// pod checks what components have in common.
func (c *checker) pod(component string, pod *Pod, args, flags []string) {
	for i, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if slices.Contains(flags, name) {
			c.add(fmt.Sprintf("%s.extraArgs[%d]", component, i), name+" is set by the chart", "remove it, and set the value of the chart")
		}
	}
	seen := map[string]bool{}
	for i, env := range pod.Env {
		key := fmt.Sprintf("%s.env[%d].name", component, i)
		switch {
		case slices.Contains([]string{"NODE_NAME", "POD_NAME", "POD_NAMESPACE", "GOMEMLIMIT"}, env.Name):
			c.add(key, env.Name+" is set by the chart", "remove it")
		case seen[env.Name]:
			c.add(key, env.Name+" is given twice", "keep one")
		case env.Value != "" && env.ValueFrom != nil:
			c.add(strings.TrimSuffix(key, ".name"), env.Name+" has value and valueFrom", "keep one")
		}
		seen[env.Name] = true
	}
	c.tolerations(component, pod.Tolerations)
	c.nodeAffinity(component, pod.Affinity)
	c.resources(component+".resources.limits.", pod.Resources.Limits)
	c.resources(component+".resources.requests.", pod.Resources.Requests)
	for _, name := range slices.Sorted(maps.Keys(pod.Resources.Requests)) {
		request := pod.Resources.Requests[name]
		if limit, ok := pod.Resources.Limits[name]; ok && request.Cmp(limit) > 0 {
			c.add(component+".resources.requests", fmt.Sprintf("%s: %s is more than the limit, %s", name, request.String(), limit.String()), "raise the limit, or lower the request")
		}
	}
}

// tolerations checks which fields belong together.
func (c *checker) tolerations(component string, tolerations []corev1.Toleration) {
	for i, toleration := range tolerations {
		key := fmt.Sprintf("%s.tolerations[%d]", component, i)
		switch {
		case toleration.Operator == corev1.TolerationOpExists && toleration.Value != "":
			c.add(key, "the operator Exists has no value", "remove value, or write operator: Equal")
		case toleration.Key == "" && toleration.Operator != corev1.TolerationOpExists:
			c.add(key, "without a key it tolerates every taint, which needs operator: Exists", "set key, or operator: Exists")
		case toleration.TolerationSeconds != nil && toleration.Effect != corev1.TaintEffectNoExecute:
			c.add(key, "tolerationSeconds needs effect: NoExecute", "set it, or remove tolerationSeconds")
		}
	}
}

// resources checks the names and the quantities of resources.
func (c *checker) resources(at string, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		switch {
		case quantity.Sign() < 0:
			c.add(at+string(name), quantity.String()+" is negative", "write 0 or more")
		case !strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) &&
			name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage:
			c.add(at+string(name), "no resource of a container has this name", "write cpu, memory or ephemeral-storage")
		}
	}
}

// nodeAffinity checks the number of values of each condition on nodes.
func (c *checker) nodeAffinity(component string, affinity *corev1.Affinity) {
	if affinity == nil || affinity.NodeAffinity == nil {
		return
	}
	const required, preferred = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[%d]", "preferredDuringSchedulingIgnoredDuringExecution[%d].preference"
	terms := map[string][]corev1.NodeSelectorRequirement{}
	if selector := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; selector != nil {
		for i, term := range selector.NodeSelectorTerms {
			terms[fmt.Sprintf(required, i)] = term.MatchExpressions
		}
	}
	for i, term := range affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms[fmt.Sprintf(preferred, i)] = term.Preference.MatchExpressions
	}
	for _, term := range slices.Sorted(maps.Keys(terms)) {
		for i, condition := range terms[term] {
			key := fmt.Sprintf("%s.affinity.nodeAffinity.%s.matchExpressions[%d]", component, term, i)
			switch count := len(condition.Values); condition.Operator {
			case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
				if count == 0 {
					c.add(key, string(condition.Operator)+" needs values", "add them")
				}
			case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
				if count > 0 {
					c.add(key, string(condition.Operator)+" has no values", "remove them, or write operator: In")
				}
			case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
				if count != 1 {
					c.add(key, string(condition.Operator)+" needs one value", "write one number")
				}
			}
		}
	}
}

// mounts checks that each further mount has its volume.
func (c *checker) mounts(values *Values) {
	volumes := map[string]bool{}
	for _, volume := range values.Agent.ExtraVolumes {
		volumes[volume.Name] = true
	}
	for i, mount := range values.Agent.ExtraVolumeMounts {
		key := fmt.Sprintf("agent.extraVolumeMounts[%d]", i)
		if !volumes[mount.Name] {
			c.add(key+".name", fmt.Sprintf("no volume of agent.extraVolumes is named %s", mount.Name), "add it")
		}
		if slices.Contains([]string{"/host", "/run/berth", "/var/lib/berth"}, path.Clean(mount.MountPath)) {
			c.add(key+".mountPath", mount.MountPath+" is a mount of the chart", "choose another path")
		}
	}
}
