package values

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// File is a values file.
type File struct {
	Name string
	Data []byte
}

// checker collects problems of values files.
type checker struct {
	files []File
	// lines are the lines of the keys of each file, by path.
	lines    []map[string]int
	merged   map[string]any
	problems []v1alpha1.ValuesProblem
	// violations are what the schema forbids.
	violations []v1alpha1.ValuesProblem
}

// Check returns what is wrong with values files, which Helm merges in their order, in a release of the namespace. Problems of a file come
// in the order of its lines, and before those of all files together.
func Check(namespace string, files ...File) []v1alpha1.ValuesProblem {
	c := &checker{files: files, merged: map[string]any{}}
	for _, file := range files {
		c.read(file)
	}
	if len(c.problems) > 0 {
		return c.problems
	}
	values := &Values{}
	text, err := yaml.Marshal(c.merged)
	if err == nil {
		_, err = config.DecodeValues("values", text, values)
	}
	if err != nil {
		c.add("", err.Error(), "")
		return c.problems
	}
	c.configs(values, namespace)
	c.images(values)
	c.host(values)
	c.pod("agent", &values.Agent.Pod, values.Agent.ExtraArgs, agentFlags())
	c.pod("mps", &values.MPS.Pod, values.MPS.ExtraArgs, []string{"--host-root"})
	c.pod("operator", &values.Operator.Pod, nil, nil)
	c.pod("scheduler", &values.Scheduler.Pod, nil, nil)
	c.pod("web", &values.Web.Pod, nil, nil)
	c.counters("agent.dcgmCounters", values.Agent.DCGMCounters)
	c.gate(values)
	c.scheduler()
	c.updateStrategy(&values.Agent.UpdateStrategy)
	c.mounts(values)
	c.metrics(values)
	c.network(values)
	if len(c.violations) > 0 {
		return c.explained()
	}
	return c.problems
}

// explained returns what the schema forbids, in the words of the checks below where one of them finds the same.
func (c *checker) explained() []v1alpha1.ValuesProblem {
	for i := range c.violations {
		v := &c.violations[i]
		if at := slices.IndexFunc(c.problems, func(p v1alpha1.ValuesProblem) bool { return p.Key == v.Key && p.File == v.File && !p.Warning }); at >= 0 {
			*v = c.problems[at]
		}
	}
	return c.violations
}

// read checks a file alone, and merges it.
func (c *checker) read(file File) {
	lines, err := config.DecodeValues(file.Name, file.Data, &Values{})
	c.lines = append(c.lines, lines)
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		for _, p := range wrong.Problems {
			c.problems = append(c.problems, v1alpha1.ValuesProblem{File: p.File, Line: p.Line, Key: p.Field, Message: p.What, Fix: p.Fix})
		}
		return
	case err != nil:
		c.problems = append(c.problems, v1alpha1.ValuesProblem{File: file.Name, Message: err.Error()})
		return
	}
	var own map[string]any
	if err := yaml.Unmarshal(file.Data, &own); err != nil {
		c.problems = append(c.problems, v1alpha1.ValuesProblem{File: file.Name, Message: err.Error()})
		return
	}
	merge(c.merged, own)
	violations, err := violations(own)
	if err != nil {
		c.problems = append(c.problems, v1alpha1.ValuesProblem{File: file.Name, Message: err.Error()})
	}
	for _, v := range violations {
		line, _ := lineOf(lines, v.key)
		c.violations = append(c.violations, v1alpha1.ValuesProblem{File: file.Name, Line: line, Key: v.key, Message: v.message})
	}
}

// merge merges values as Helm does: maps by key, and anything else is replaced. A key without a value stays: it removes the default.
func merge(into, from map[string]any) {
	for key, value := range from {
		below, isMap := value.(map[string]any)
		old, wasMap := into[key].(map[string]any)
		switch {
		case isMap && wasMap:
			merge(old, below)
		default:
			into[key] = value
		}
	}
}

// add adds a problem of the file that gives the key last.
func (c *checker) add(key, message, fix string) {
	problem := v1alpha1.ValuesProblem{Key: key, Message: message, Fix: fix}
	for i, file := range c.files {
		if line, ok := lineOf(c.lines[i], key); ok || problem.File == "" {
			problem.File, problem.Line = file.Name, line
		}
	}
	c.problems = append(c.problems, problem)
}

func (c *checker) warn(key, message, fix string) {
	c.add(key, message, fix)
	c.problems[len(c.problems)-1].Warning = true
}

// lineOf returns the line of a key, or of the nearest key above it.
func lineOf(lines map[string]int, key string) (int, bool) {
	for {
		if line, ok := lines[key]; ok {
			return line, true
		}
		at := strings.LastIndexAny(key, ".[")
		if at < 0 {
			return 0, false
		}
		key = key[:at]
	}
}

// given returns the value at a path of keys, and whether a file gives it.
func (c *checker) given(keys ...string) (any, bool) {
	var value any = c.merged
	for _, key := range keys {
		below, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = below[key]; !ok {
			return nil, false
		}
	}
	return value, true
}

// on tells whether a setting is on: what a file says, or the chart's default.
func (c *checker) on(byDefault bool, keys ...string) bool {
	if value, ok := c.given(keys...); ok {
		return value == true
	}
	return byDefault
}

// images checks where the images are.
func (c *checker) images(values *Values) {
	if strings.Contains(values.Image.Registry, "://") {
		c.add("image.registry", fmt.Sprintf("%q has a scheme", values.Image.Registry), "write the registry's name and path, such as registry.example.com/berth")
	}
	if strings.HasSuffix(values.Image.Registry, "/") {
		c.add("image.registry", fmt.Sprintf("%q ends with a slash, and the chart adds one", values.Image.Registry), "remove it")
	}
	for _, component := range []struct {
		key   string
		image Image
	}{{"agent", values.Agent.Image}, {"operator", values.Operator.Image}, {"scheduler", values.Scheduler.Image}, {"web", values.Web.Image}} {
		key, image := component.key, component.image
		if strings.ContainsAny(image.Name, ":@") {
			c.add(key+".image.name", fmt.Sprintf("%q has a tag or a digest", image.Name), "write them in "+key+".image.tag and "+key+".image.digest")
		}
		if image.Tag != "" && image.Digest != "" {
			c.warn(key+".image.tag", "has no effect beside a digest", "remove one of them")
		}
	}
}

// host checks the directories.
func (c *checker) host(values *Values) {
	for _, host := range [][2]string{{"kubeletDir", values.Host.KubeletDir}, {"cdiDir", values.Host.CDIDir}, {"hookDir", values.Host.HookDir}} {
		if dir := host[1]; dir != "" && (path.Clean(dir) == "/" || strings.Contains(dir, "..")) {
			c.add("host."+host[0], fmt.Sprintf("%q is not a directory below /", dir), "write an absolute path without ..")
		}
	}
	if hooks := path.Clean(values.Host.HookDir); strings.HasPrefix(hooks, "/run/") || strings.HasPrefix(hooks, "/var/run/") {
		c.add("host.hookDir", hooks+" is empty after a reboot, when the runtime may start containers before the agent", "choose a directory outside /run")
	}
}

// scheduler checks the settings of the scheduler.
func (c *checker) scheduler() {
	if c.on(false, "scheduler", "replaceDefault") && !c.on(false, "scheduler", "enabled") {
		c.add("scheduler.replaceDefault", "true needs scheduler.enabled: true", "set it")
	}
}

// updateStrategy checks how the agents are replaced: Kubernetes refuses a DaemonSet with both numbers, and one with none.
func (c *checker) updateStrategy(strategy *appsv1.DaemonSetUpdateStrategy) {
	switch strategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return
	case "", appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		c.add("agent.updateStrategy.type", fmt.Sprintf("%q is neither RollingUpdate nor OnDelete", strategy.Type), "write one of them")
	}
	number := func(key, byDefault string) string {
		value, ok := c.given("agent", "updateStrategy", "rollingUpdate", key)
		switch {
		case !ok:
			return byDefault
		case value == nil:
			return "0"
		default:
			return fmt.Sprint(value)
		}
	}
	surge, unavailable := number("maxSurge", "100%"), number("maxUnavailable", "0")
	if none := []string{"0", "0%"}; slices.Contains(none, surge) == slices.Contains(none, unavailable) {
		c.add("agent.updateStrategy.rollingUpdate", fmt.Sprintf("maxSurge is %s and maxUnavailable %s, and one of them has to be 0 and the other more", surge, unavailable),
			"leave both out, or set maxSurge: 0 beside maxUnavailable")
	}
}

// metrics checks where metrics are served, and who may read them.
func (c *checker) metrics(values *Values) {
	metrics, probes := values.Operator.MetricsPort, values.Operator.ProbePort
	if metrics != 0 && metrics == probes || metrics == 8081 && probes == 0 || metrics == 0 && probes == 8080 {
		c.add("operator.probePort", "is the port of operator.metricsPort too", "choose another")
	}
	for _, listens := range []struct{ key, address string }{
		{"agent.metricsAddress", values.Agent.MetricsAddress}, {"operator.metricsAddress", values.Operator.MetricsAddress},
	} {
		if _, err := netip.ParseAddr(listens.address); err != nil && listens.address != "" {
			c.add(listens.key, fmt.Sprintf("%q is no IP address", listens.address), "write it as 127.0.0.1, or leave it out")
		}
	}
	if values.PodMonitor.Enabled && values.Metrics.Auth == "kubernetes" && values.PodMonitor.TokenSecret.Name == "" {
		c.add("podMonitor.tokenSecret.name", "is empty, and metrics.auth: kubernetes wants a token", "name a Secret with a token that may get /metrics")
	}
}

// network checks the addresses of the API server.
func (c *checker) network(values *Values) {
	for i, cidr := range values.NetworkPolicy.APIServerCIDRs {
		key := fmt.Sprintf("networkPolicy.apiServerCIDRs[%d]", i)
		prefix, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil:
			c.add(key, fmt.Sprintf("%q is no range of addresses", cidr), "write it as 10.96.0.1/32")
		case prefix.Bits() == 0:
			c.warn(key, cidr+" is every address, and limits nothing", "write the addresses of the API server: kubectl get endpointslices -n default kubernetes")
		}
	}
	if len(values.NetworkPolicy.APIServerCIDRs) > 0 && !c.on(true, "networkPolicy", "enabled") {
		c.add("networkPolicy.apiServerCIDRs", "has no effect without networkPolicy.enabled", "set it to true")
	}
}

// configs checks the configurations of the agents.
func (c *checker) configs(values *Values, namespace string) {
	names := maps.Clone(values.ConfigFiles)
	if names == nil {
		names = map[string]v1alpha1.Lines{}
	}
	for name := range values.Configs {
		names[name] = ""
	}
	if _, ok := names["default"]; !ok && len(names) > 1 && c.removesDefault() {
		c.add("configs", "none is named default, so a node without the label berth.dev/config has none", "name one of them default")
	}
	for _, name := range slices.Sorted(maps.Keys(values.Configs)) {
		own := values.Configs[name]
		if _, replaced := values.ConfigFiles[name]; replaced {
			if _, ok := c.given("configs", name); ok {
				c.warn("configs["+name+"]", "has no effect beside configFiles["+name+"]", "remove one of them")
			}
			continue
		}
		c.config("configs["+name+"]", name, &own, namespace)
	}
	for _, name := range slices.Sorted(maps.Keys(values.ConfigFiles)) {
		c.configFile("configFiles["+name+"]", name, string(values.ConfigFiles[name]), namespace)
	}
}

// configFile checks a configuration that is given as text.
func (c *checker) configFile(at, name, text, namespace string) {
	read, err := config.Read(name, []byte(text), nil)
	if err != nil {
		c.configError(at, err)
		return
	}
	for _, note := range read.Notes {
		c.warn(at, note, "")
	}
	if driver, ok := c.given("agent", "draDriverName"); ok && read.Config.DRADriverName != driver {
		c.add(at, fmt.Sprintf("agent.draDriverName: %v is not part of a text", driver), "use configs for this configuration")
	}
	var keys map[string]any
	_ = yaml.Unmarshal([]byte(text), &keys) // It was read before.
	c.chartSets(at, func(key string) bool { _, ok := keys[key]; return ok })
	c.counters(at+".dcgmCounters", read.Config.DCGMCounters)
	c.rights(at, read.Config, namespace)
}

// configError adds what is wrong with a configuration.
func (c *checker) configError(at string, err error) {
	wrong, is := errors.AsType[*config.Error](err)
	if !is {
		c.add(at, err.Error(), "")
		return
	}
	for _, p := range wrong.Problems {
		c.add(at+"."+p.Field, p.What, p.Fix)
	}
}

// removesDefault tells whether a file removes the configuration of the chart's values.
func (c *checker) removesDefault() bool {
	return slices.ContainsFunc(c.files, func(file File) bool {
		var own struct {
			Configs map[string]any `json:"configs"`
		}
		_ = yaml.Unmarshal(file.Data, &own) // It was read before.
		value, ok := own.Configs["default"]
		return ok && value == nil
	})
}

// chartSets are the settings of a configuration that the chart makes, with the value of the chart, if there is one.
func chartSets() map[string]string {
	return map[string]string{"hostRoot": "", "kubeletDir": "host.kubeletDir", "cdiDir": "host.cdiDir", "hookDir": "host.hookDir",
		"metricsListen": "agent.metricsPort", "draDriverName": "agent.draDriverName", "nodeName": "", "standalone": "", "stateDir": "",
		"persistentDir": "", "mpsRoot": ""}
}

// chartSets checks that a configuration has none of the settings that the chart makes.
func (c *checker) chartSets(at string, has func(key string) bool) {
	for _, key := range slices.Sorted(maps.Keys(chartSets())) {
		if !has(key) {
			continue
		}
		fix := "remove it"
		if instead := chartSets()[key]; instead != "" {
			fix += ", and set " + instead
		}
		c.add(at+"."+key, "the chart sets this", fix)
	}
}

// config checks one configuration.
func (c *checker) config(at, name string, own *v1alpha1.AgentConfig, namespace string) {
	c.chartSets(at, func(key string) bool { _, ok := c.given("configs", name, key); return ok })
	own.APIVersion, own.Kind = v1alpha1.APIVersion, "AgentConfig"
	text, err := yaml.Marshal(own)
	if err == nil {
		_, err = config.Parse(name, text, nil)
	}
	if err != nil {
		c.configError(at, err)
	}
	c.counters(at+".dcgmCounters", own.DCGMCounters)
	c.rights(at, own, namespace)
}

// counters checks a list of fields of DCGM. The agent goes on without what is wrong.
func (c *checker) counters(key string, list v1alpha1.Lines) {
	entries, mistakes := dcgm.Parse(string(list))
	for _, m := range mistakes {
		c.warn(key, fmt.Sprintf("line %d: %s", m.Line, m.What), m.Fix)
	}
	_, refused := dcgm.Select(nil, entries)
	for _, r := range refused {
		c.warn(key, r.Name+" has no value: "+r.Reason, "remove it from the list")
	}
}

func allocationOf(rule *v1alpha1.GPURule) v1alpha1.AllocationAPI {
	if rule.Allocation == nil {
		return ""
	}
	return rule.Allocation.API
}

// rights checks that the agents have the rights that a configuration needs.
func (c *checker) rights(at string, own *v1alpha1.AgentConfig, namespace string) {
	for i := range own.GPUs {
		rule := &own.GPUs[i]
		if api := allocationOf(rule); (api == v1alpha1.AllocationDRA || api == v1alpha1.AllocationAuto) && !c.on(true, "rights", "dra") {
			c.add(fmt.Sprintf("%s.gpus[%d].allocation.api", at, i), string(api)+" needs rights.dra: true", "set it")
		}
		if rule.Sharing != nil && rule.Sharing.Mode == v1alpha1.SharingMPS && !c.on(false, "mps", "enabled") {
			c.warn(fmt.Sprintf("%s.gpus[%d].sharing.mode", at, i), "mps needs the supervisor of MPS daemons on the node", "set mps.enabled: true, or run berth-agent mps there")
		}
	}
	if own.Labels.Output == v1alpha1.LabelsNodeFeature && !c.on(false, "rights", "nodeFeature") {
		c.add(at+".labels.output", "nodeFeature needs rights.nodeFeature: true", "set it")
	}
	if own.TaintUnhealthy && !c.on(false, "rights", "taintUnhealthy") {
		c.add(at+".taintUnhealthy", "true needs rights.taintUnhealthy: true", "set it")
	}
	of, _, _ := strings.Cut(own.MIGConfigMap, "/")
	if value, _ := c.given("rights", "migConfigMap"); own.MIGConfigMap != "" && of != namespace && value != own.MIGConfigMap {
		c.add(at+".migConfigMap", own.MIGConfigMap+" is outside the namespace "+namespace+" of the release", "set rights.migConfigMap: "+own.MIGConfigMap)
	}
}

// gate checks the settings of the gate.
func (c *checker) gate(values *Values) {
	if values.Gate.TaintKey == nodeapi.TaintUnhealthy {
		c.add("gate.taintKey", values.Gate.TaintKey+" is the taint of unhealthy GPUs", "choose another key, or leave the default")
	}
	if mode := values.Gate.Mode; mode == v1alpha1.GateReport || mode == v1alpha1.GateDisabled {
		for _, key := range []string{"taintKey", "timeout", "onTimeout"} {
			if _, ok := c.given("gate", key); ok {
				c.warn("gate."+key, fmt.Sprintf("has no effect while gate.mode is %s", mode), "remove it, or set gate.mode to enforce")
			}
		}
	}
}
