package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// What the API server accepts (k8s.io/apimachinery/pkg/util/validation). A tag of a field cannot have these: they have commas.
const (
	dnsLabel   = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	subdomain  = `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	namePart   = `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	labelKey   = `(` + subdomain + `/)?` + namePart
	labelValue = `(` + namePart + `)?`
	// annotationKey is labelKey in letters of any case.
	annotationKey = `([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/)?` + namePart
	// resourceName is a resource of a container: one of Kubernetes, or one with a domain.
	resourceName = `cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+|` + subdomain + `/` + namePart
	octet        = `(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])`
	cidr         = `(` + octet + `\.){3}` + octet + `/(3[0-2]|[12]?[0-9])|[0-9a-fA-F:]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])`
	registry     = `([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*`
	imageName    = `[a-z0-9]+([._/-]+[a-z0-9]+)*`
)

type object = map[string]any

// pattern wants a whole text of this form.
func pattern(form string) object { return object{"pattern": "^(" + form + ")$"} }

// length adds the most characters to a schema.
func length(most int, of object) object {
	of["maxLength"] = most
	return of
}

// pairs wants keys of this form, with values of a schema. Helm's library does not say where a name is that propertyNames refuses.
func pairs(key string, value object) object {
	return object{"type": "object", "patternProperties": object{"^(" + key + ")$": value}, "additionalProperties": false}
}

// labels wants labels.
func labels() object {
	value := pattern(labelValue)
	value["type"] = "string"
	return pairs(labelKey, value)
}

// resources wants resources of a container.
func resources() object {
	return pairs(resourceName, object{"oneOf": []object{{"type": "string", "pattern": quantity}, {"type": "number", "minimum": 0}}})
}

func one(of ...string) object { return object{"enum": of} }

func between(least, most int) object { return object{"minimum": least, "maximum": most} }

// items wants this of each element of a list of values of a type.
func items(kind string, of object) object {
	of["type"] = kind
	return object{"items": of}
}

// constraints are what the schema wants beyond the types, by DEFINITION.property. The API server would refuse the rest when Helm has made
// other objects already.
func constraints() map[string]object {
	all := map[string]object{
		"Images.registry":     pattern(registry),
		"Images.pullSecrets":  items("string", length(253, pattern(subdomain))),
		"Image.name":          pattern(imageName),
		"Image.tag":           pattern(`([A-Za-z0-9_][A-Za-z0-9_.-]*)?`),
		"Agent.draDriverName": length(63, pattern(subdomain)),
		"Gate.taintKey":       pattern(labelKey),
		"Gate.timeout":        pattern(`[1-9][0-9]{0,5}(s|m|h)`),
		"Web.tlsSecret":       pattern(`(` + subdomain + `)?`),
		"TopologyLevel.key":   length(317, pattern(labelKey)),
		"TopologyLevel.name":  {"minLength": 1},
		"PodMonitor.interval": pattern(`[1-9][0-9]{0,5}(ms|s|m)`),

		"NetworkPolicy.apiServerCIDRs": items("string", pattern(cidr)),
		"NetworkPolicy.apiServerPorts": items("integer", between(1, 65535)),

		"Resources.limits":   resources(),
		"Resources.requests": resources(),

		"Toleration.key":      length(317, pattern(`(`+labelKey+`)?`)),
		"Toleration.operator": one("", "Equal", "Exists", "Lt", "Gt"),
		"Toleration.value":    pattern(labelValue),
		"Toleration.effect":   one("", "NoSchedule", "PreferNoSchedule", "NoExecute"),

		"NodeSelectorRequirement.operator":  one("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
		"LabelSelectorRequirement.key":      length(317, pattern(labelKey)),
		"LabelSelectorRequirement.operator": one("In", "NotIn", "Exists", "DoesNotExist"),
		"LabelSelector.matchLabels":         labels(),
		"PreferredSchedulingTerm.weight":    between(1, 100),
		"WeightedPodAffinityTerm.weight":    between(1, 100),
		"PodAffinityTerm.topologyKey":       length(317, pattern(labelKey)),

		"EnvVar.name":                                 pattern(`[ -<>-~]+`),
		"Volume.name":                                 pattern(dnsLabel),
		"VolumeMount.name":                            pattern(dnsLabel),
		"VolumeMount.mountPath":                       pattern(`[^:]+`),
		"VolumeMount.mountPropagation":                one("", "None", "HostToContainer", "Bidirectional"),
		"VolumeMount.recursiveReadOnly":               one("", "Disabled", "IfPossible", "Enabled"),
		"HostPathVolumeSource.path":                   {"minLength": 1},
		"HostPathVolumeSource.type":                   one("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"),
		"ConfigMapVolumeSource.name":                  length(253, pattern(subdomain)),
		"SecretVolumeSource.secretName":               length(253, pattern(subdomain)),
		"PersistentVolumeClaimVolumeSource.claimName": length(253, pattern(subdomain)),
	}
	for _, component := range []string{"Agent", "MPS", "Operator", "Scheduler", "Web"} {
		all[component+".priorityClassName"] = length(253, pattern(`(`+subdomain+`)?`))
		all[component+".nodeSelector"] = labels()
		all[component+".labels"] = labels()
		all[component+".annotations"] = pairs(annotationKey, object{"type": "string"})
	}
	for _, made := range []string{"PodMonitor", "Alerts", "Dashboard"} {
		all[made+".labels"] = labels()
	}
	return all
}

// required are the properties without which the API server refuses an object of a definition.
func required() map[string][]string {
	return map[string][]string{
		"NodeSelectorRequirement": {"key", "operator"}, "LabelSelectorRequirement": {"key", "operator"}, "NodeSelector": {"nodeSelectorTerms"},
		"PreferredSchedulingTerm": {"weight", "preference"}, "WeightedPodAffinityTerm": {"weight", "podAffinityTerm"}, "PodAffinityTerm": {"topologyKey"},
		"EnvVar": {"name"}, "Volume": {"name"}, "VolumeMount": {"name", "mountPath"}, "HostPathVolumeSource": {"path"},
	}
}

// constrain adds the constraints to the definitions. One whose property is not there is an error.
func constrain(definitions object) error {
	for _, path := range slices.Sorted(maps.Keys(constraints())) {
		name, key, _ := strings.Cut(path, ".")
		definition, _ := definitions[name].(object)
		properties, _ := definition["properties"].(object)
		property, ok := properties[key].(object)
		if !ok {
			return fmt.Errorf("no value has the property %s, which has a constraint", path)
		}
		delete(property, "$ref") // The constraint is the whole schema then.
		maps.Copy(property, constraints()[path])
	}
	for _, name := range slices.Sorted(maps.Keys(required())) {
		definition, ok := definitions[name].(object)
		if !ok {
			return fmt.Errorf("no value has the definition %s, which has required properties", name)
		}
		definition["required"] = required()[name]
	}
	return nil
}
