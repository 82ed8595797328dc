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

// DecidingRules says which of the rules decides about each card, by its place in rules. A
// card that no rule selects is not in it. What a card is partitioned into makes no
// difference, so that a rule does not move on to the next card when it has changed one.
func DecidingRules(snapshot *gpu.Snapshot, rules []GPURule) map[gpu.UUID]int {
	cards := survey(snapshot, unheard)
	decided := make(map[gpu.UUID]int, len(cards))
	for i, rule := range decideCards(cards, rules) {
		if rule != noRule {
			decided[cards[i].UUID] = rule
		}
	}
	return decided
}

// decideCards is the deciding rule of each card, or noRule.
func decideCards(cards []card, rules []GPURule) []int {
	return decide(len(cards), len(rules),
		func(rule int) int { return rules[rule].Select.Count },
		func(rule, i int) bool { return rules[rule].Select.matches(&cards[i]) })
}

// decide finds the first rule for each item in turn, of those that have not yet as many
// items as they count; a count of 0 has no end.
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

func (s *GPUSelect) matches(c *card) bool {
	return (len(s.Index) == 0 || slices.Contains(s.Index, c.Index)) &&
		(len(s.UUID) == 0 || slices.Contains(s.UUID, c.UUID)) &&
		matchesAny(s.Model, c.Product)
}

// named tells whether the selector says which cards it means, not only of what kind.
func (s *GPUSelect) named() bool { return len(s.Index)+len(s.UUID) > 0 }

func (s *MIGSelect) matches(c *card, part *gpu.MIGDevice) bool {
	return (len(s.GPU) == 0 || slices.Contains(s.GPU, c.Index)) &&
		(len(s.Index) == 0 || slices.Contains(s.Index, c.partIndex(part))) &&
		(len(s.UUID) == 0 || slices.Contains(s.UUID, part.UUID) || slices.Contains(s.UUID, oldUUID(c, part))) &&
		matchesAny(s.Profile, part.Profile)
}

// oldUUID is a MIG device's name in drivers before 470.
func oldUUID(c *card, part *gpu.MIGDevice) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("MIG-%s/%d/%d", c.UUID, part.GI, part.CI))
}

func matchesAny(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool { return matchPattern(pattern, text) })
}

// matchPattern tells whether text is what the pattern says, in which * stands for any
// number of characters. It needs no more steps than the product of the two lengths.
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
		// The first place is as good as any later one: it leaves the most to the rest.
		at := strings.Index(text, piece)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(piece):], more
	}
}

// cardRuleProblems tells of rules that name what is not there, and of rules without effect.
// Nothing is known of a node that shows no card at all.
func cardRuleProblems(p *problems, cards []card, rules []GPURule, decided []int) {
	if len(cards) == 0 {
		return
	}
	var indices, ids, models []string
	for i := range cards {
		indices = append(indices, cards[i].index())
		ids = append(ids, string(cards[i].UUID))
		models = append(models, cards[i].Product)
	}
	for i := range rules {
		s, name := &rules[i].Select, gpuRule(i)
		unknown := missing(numbers(s.Index), indices, "index")
		unknown = append(unknown, missing(texts(s.UUID), ids, "UUID")...)
		if len(unknown) > 0 {
			p.say(RuleDeviceUnknown, fmt.Sprintf("rule %s selects %s, which this node does not have (its GPUs: %s); correct or remove it; berth-agent inspect gpus lists both",
				name, list(unknown), list(describeCards(cards))))
			continue
		}
		if len(s.Model) == 0 && !s.named() || slices.Contains(decided, i) {
			continue
		}
		if slices.ContainsFunc(cards, func(c card) bool { return s.matches(&c) }) {
			p.say(RuleUnused, fmt.Sprintf("rule %s decides about no GPU, since earlier rules decide about all that it selects; remove it, or put it before them", name))
			continue
		}
		p.say(RuleUnused, fmt.Sprintf("rule %s selects no GPU of this node, which has %s%s; that is fine if the file serves other nodes too",
			name, list(unique(models)), meant(s.Model, models)))
	}
}

// migRuleProblems is the same for MIG devices.
func migRuleProblems(p *problems, cards []card, rules []MIGRule, offered []slice, decided []int, strategy string, single bool) {
	if len(cards) == 0 {
		return
	}
	var gpus, indices, ids, profiles []string
	for i := range cards {
		c := &cards[i]
		gpus = append(gpus, c.index())
		for _, part := range c.parts {
			indices = append(indices, c.partIndex(part))
			ids = append(ids, string(part.UUID), string(oldUUID(c, part)))
			profiles = append(profiles, part.Profile)
		}
	}
	for i := range rules {
		s, name := &rules[i].Select, migRule(i)
		if strategy == MIGNone {
			p.say(RuleUnused, fmt.Sprintf("rule %s has no effect, since migStrategy none offers no MIG devices; remove it, or set migStrategy: mixed", name))
			continue
		}
		if s.NamedAsGPU && !single {
			continue // MIGNotSingle says why, if it has to.
		}
		unknown := missing(numbers(s.GPU), gpus, "GPU index")
		unknown = append(unknown, missing(s.Index, indices, "index")...)
		unknown = append(unknown, missing(texts(s.UUID), ids, "UUID")...)
		if len(unknown) > 0 {
			p.say(RuleDeviceUnknown, fmt.Sprintf("rule %s selects %s, which this node does not have (its MIG devices: %s); correct or remove it, or make the MIG device",
				name, list(unknown), orNone(list(indices))))
			continue
		}
		if len(s.GPU)+len(s.Index)+len(s.UUID)+len(s.Profile) == 0 || slices.Contains(decided, i) {
			continue
		}
		if slices.ContainsFunc(offered, func(one slice) bool { return s.matches(one.card, one.part) }) {
			p.say(RuleUnused, fmt.Sprintf("rule %s decides about no MIG device, since earlier rules decide about all that it selects; remove it, or put it before them", name))
			continue
		}
		p.say(RuleUnused, fmt.Sprintf("rule %s selects no MIG device that this node offers, which has the profiles %s%s; that is fine if the file serves other nodes or layouts too",
			name, orNone(list(unique(profiles))), meant(s.Profile, profiles)))
	}
}

// gpuRule and migRule are the names of rules, as in the file.
func gpuRule(at int) string { return fmt.Sprintf("gpus[%d]", at) }
func migRule(at int) string { return fmt.Sprintf("migDevices[%d]", at) }

// missing lists what is wanted and not had, as phrases.
func missing(wanted, had []string, what string) []string {
	var phrases []string
	for _, name := range wanted {
		if !slices.Contains(had, name) {
			phrases = append(phrases, what+" "+name)
		}
	}
	return phrases
}

// meant suggests a name for a pattern without stars that is near one.
func meant(patterns, had []string) string {
	for _, pattern := range patterns {
		near := spelling.Nearest(pattern, had)
		if near != "" && near != pattern && !strings.Contains(pattern, "*") {
			return fmt.Sprintf(" (did you mean %s?)", near)
		}
	}
	return ""
}

func describeCards(cards []card) []string {
	var phrases []string
	for i := range cards {
		phrases = append(phrases, cards[i].index()+" "+string(cards[i].UUID))
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

func texts(ids []gpu.UUID) []string {
	var names []string
	for _, id := range ids {
		names = append(names, string(id))
	}
	return names
}
