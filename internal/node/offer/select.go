package offer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

const noRule = -1

// DecidingRules returns the index of the rule that decides about each GPU. A GPU that no rule selects is not in the
// map. The result does not depend on how a GPU is partitioned, so that a rule does not move on to the next GPU after it
// has changed one.
func DecidingRules(snapshot *gpu.Snapshot, rules []GPURule) map[gpu.UUID]int {
	gpus := listNamed(snapshot, ignoreUnnamed)
	decided := make(map[gpu.UUID]int, len(gpus))
	for i, rule := range decideGPUs(gpus, rules) {
		if rule != noRule {
			decided[gpus[i].UUID] = rule
		}
	}
	return decided
}

// decideGPUs returns the deciding rule of each GPU, or noRule.
func decideGPUs(gpus []namedGPU, rules []GPURule) []int {
	return decide(len(gpus), len(rules),
		func(rule int) int { return rules[rule].Select.Count },
		func(rule, i int) bool { return rules[rule].Select.matches(&gpus[i]) })
}

// decide returns for each item the first matching rule that has fewer items than its count; a count of 0 is unlimited.
func decide(items, rules int, count func(rule int) int, matches func(rule, item int) bool) []int {
	decided, taken := make([]int, items), make([]int, rules)
	for item := range decided {
		decided[item] = noRule
		for rule := range rules {
			if limit := count(rule); (limit <= 0 || taken[rule] < limit) && matches(rule, item) {
				decided[item] = rule
				taken[rule]++
				break
			}
		}
	}
	return decided
}

func (s *GPUSelect) matches(c *namedGPU) bool {
	return (len(s.Index) == 0 || slices.Contains(s.Index, c.Index)) &&
		(len(s.UUID) == 0 || slices.Contains(s.UUID, string(c.UUID))) &&
		matchesAny(s.Model, c.Product)
}

// named reports whether the selector names individual GPUs.
func (s *GPUSelect) named() bool { return len(s.Index)+len(s.UUID) > 0 }

func (s *MIGSelect) matches(c *namedGPU, part *gpu.MIGDevice) bool {
	return (len(s.GPU) == 0 || slices.Contains(s.GPU, c.Index)) &&
		(len(s.Index) == 0 || slices.Contains(s.Index, c.partIndex(part))) &&
		(len(s.UUID) == 0 || slices.Contains(s.UUID, string(part.UUID)) || slices.Contains(s.UUID, oldUUID(c, part))) &&
		matchesAny(s.Profile, part.Profile)
}

// oldUUID returns the UUID that a MIG device has in drivers before 470.
func oldUUID(c *namedGPU, part *gpu.MIGDevice) string {
	return fmt.Sprintf("MIG-%s/%d/%d", c.UUID, part.GI, part.CI)
}

func matchesAny(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool { return matchPattern(pattern, text) })
}

// matchPattern reports whether text matches the pattern, in which * stands for any number of characters. The number of
// steps is at most the product of the two lengths.
func matchPattern(pattern, text string) bool {
	first, rest, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		piece, more, starred := strings.Cut(rest, "*")
		if !starred {
			return strings.HasSuffix(text, piece)
		}
		// The first match is as good as any later one: it leaves the most text for the rest.
		at := strings.Index(text, piece)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(piece):], more
	}
}

// gpuRuleProblems reports rules that name a device that does not exist, and rules without effect. It reports nothing on
// a node without any GPU.
func gpuRuleProblems(p *problems, gpus []namedGPU, rules []GPURule, decided []int) {
	if len(gpus) == 0 {
		return
	}
	var indices, ids, models []string
	for i := range gpus {
		indices = append(indices, gpus[i].index())
		ids = append(ids, string(gpus[i].UUID))
		models = append(models, gpus[i].Product)
	}
	for i := range rules {
		s, name := &rules[i].Select, gpuRule(i)
		unknown := missing(numbers(s.Index), indices, "index")
		unknown = append(unknown, missing(s.UUID, ids, "UUID")...)
		if len(unknown) > 0 {
			p.addGeneral(RuleDeviceUnknown, fmt.Sprintf("rule %s selects %s, which this node does not have (its GPUs: %s); correct or remove it; berth-agent inspect gpus lists both",
				name, list(unknown), list(describeGPUs(gpus))))
			continue
		}
		if len(s.Model) == 0 && !s.named() || slices.Contains(decided, i) {
			continue
		}
		if slices.ContainsFunc(gpus, func(c namedGPU) bool { return s.matches(&c) }) {
			p.addGeneral(RuleUnused, fmt.Sprintf("rule %s decides about no GPU, because earlier rules decide about all that it selects; remove it, or move it before them", name))
			continue
		}
		p.addGeneral(RuleUnused, fmt.Sprintf("rule %s selects no GPU of this node, which has %s%s; that is fine if the file serves other nodes too",
			name, list(unique(models)), suggestion(s.Model, models)))
	}
}

// migRuleProblems does the same for MIG devices.
func migRuleProblems(p *problems, gpus []namedGPU, rules []MIGRule, offered []slice, decided []int, strategy string, single bool) {
	if len(gpus) == 0 {
		return
	}
	var gpuIndices, indices, ids, profiles []string
	for i := range gpus {
		c := &gpus[i]
		gpuIndices = append(gpuIndices, c.index())
		for _, part := range c.parts {
			indices = append(indices, c.partIndex(part))
			ids = append(ids, string(part.UUID), oldUUID(c, part))
			profiles = append(profiles, part.Profile)
		}
	}
	for i := range rules {
		s, name := &rules[i].Select, migRule(i)
		if strategy == MIGNone {
			p.addGeneral(RuleUnused, fmt.Sprintf("rule %s has no effect, since migStrategy none offers no MIG devices; remove it, or set migStrategy: mixed", name))
			continue
		}
		if s.NamedAsGPU && !single {
			continue // MIGNotSingle reports it where needed.
		}
		unknown := missing(numbers(s.GPU), gpuIndices, "GPU index")
		unknown = append(unknown, missing(s.Index, indices, "index")...)
		unknown = append(unknown, missing(s.UUID, ids, "UUID")...)
		if len(unknown) > 0 {
			p.addGeneral(RuleDeviceUnknown, fmt.Sprintf("rule %s selects %s, which this node does not have (its MIG devices: %s); correct or remove it, or create the MIG device",
				name, list(unknown), orNone(list(indices))))
			continue
		}
		if len(s.GPU)+len(s.Index)+len(s.UUID)+len(s.Profile) == 0 || slices.Contains(decided, i) {
			continue
		}
		if slices.ContainsFunc(offered, func(one slice) bool { return s.matches(one.gpu, one.part) }) {
			p.addGeneral(RuleUnused, fmt.Sprintf("rule %s decides about no MIG device, because earlier rules decide about all that it selects; remove it, or move it before them", name))
			continue
		}
		p.addGeneral(RuleUnused, fmt.Sprintf("rule %s selects no MIG device that this node offers, which has the profiles %s%s; that is fine if the file serves other nodes or layouts too",
			name, orNone(list(unique(profiles))), suggestion(s.Profile, profiles)))
	}
}

// gpuRule and migRule return the names of rules as in the configuration file.
func gpuRule(at int) string { return fmt.Sprintf("gpus[%d]", at) }
func migRule(at int) string { return fmt.Sprintf("migDevices[%d]", at) }

// missing lists the wanted names that do not exist.
func missing(wanted, had []string, what string) []string {
	var phrases []string
	for _, name := range wanted {
		if !slices.Contains(had, name) {
			phrases = append(phrases, what+" "+name)
		}
	}
	return phrases
}

// suggestion suggests a similar name for a pattern without stars.
func suggestion(patterns, had []string) string {
	for _, pattern := range patterns {
		near := spelling.Nearest(pattern, had)
		if near != "" && near != pattern && !strings.Contains(pattern, "*") {
			return fmt.Sprintf(" (did you mean %s?)", near)
		}
	}
	return ""
}

func describeGPUs(gpus []namedGPU) []string {
	var phrases []string
	for i := range gpus {
		phrases = append(phrases, gpus[i].index()+" "+string(gpus[i].UUID))
	}
	return phrases
}

func list(names []string) string { return strings.Join(names, ", ") }

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func unique(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

func numbers(indices []int) []string {
	var names []string
	for _, index := range indices {
		names = append(names, strconv.Itoa(index))
	}
	return names
}
