package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet/gang"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// where says where a plan is: "on 2 nodes in one rack (rack-a)".
func (g *gangWorld) where(r *asked) string {
	count := len(distinct(slices.DeleteFunc(slices.Clone(r.nodes), func(n string) bool { return n == "" })))
	text := "on " + phrase.Count(count, "node")
	if count == 1 {
		text = "on " + r.nodes[slices.IndexFunc(r.nodes, func(n string) bool { return n != "" })]
	} else if level := g.levelName(r.plan.Level); level != "" {
		text += fmt.Sprintf(" in one %s (%s)", level, r.plan.Domain)
	}
	if placed, all := r.plan.Placed, len(g.in.Members); placed < all {
		text = fmt.Sprintf("with %d of its %d members ", placed, all) + text
	}
	return text
}

func distinct(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// together says how many members have to fit, and where.
func (g *gangWorld) together() string {
	text := fmt.Sprintf("%s fit", plural(int64(g.min), "1 member has to", fmt.Sprintf("%d members have to", g.min)))
	if level := g.levelName(g.required); level != "" {
		return text + " in one " + level
	}
	if g.min == 1 {
		return text
	}
	return text + " together"
}

// because says why there is no plan, as a sentence that follows "because".
func (g *gangWorld) because(r *asked) (Code, string) {
	f := r.refusal
	level := g.levelName(g.required)
	switch {
	case len(g.nodes()) == 0:
		return NoNodes, "the cluster has no nodes."
	case f.Apart:
		return GangApart, fmt.Sprintf("its members that have a node are in several domains of the level %s, and all have to be in one.", level)
	case f.Kinds > 0:
		return GangKinds, fmt.Sprintf("it has %d kinds of members, which are too many to be divided into segments.", f.Kinds)
	case f.Domains == 0 && level != "":
		return GangNoLevel, fmt.Sprintf("no node has the topology level %s, which it requires.", level)
	}
	code, text := g.dominant(r)
	switch {
	case f.Wider != "":
		return GangLevel, fmt.Sprintf("%s, and at most %d of them do (%s); they would fit in %s.%s", g.together(), f.Most, f.Domain, in(f.Wider), g.lack(r))
	case code == NoResource || code == NoGPUs || code == NoProfile:
		return code, text
	case code == Selector || code == Taint || code == Cordoned || code == PodLimit || code == OtherInUse:
		// What the nearest node lacks that the members can use is not what they wait for.
		return code, text + g.fit(f) + "."
	}
	return code, text + g.lack(r)
}

// in returns a level with its article.
func in(level string) string {
	if strings.HasPrefix(level, "the ") {
		return level
	}
	return "one " + level
}

// lack says how many members fit, and what the next one lacks on the nearest node beside these.
func (g *gangWorld) lack(r *asked) string {
	f := r.refusal
	next := ""
	if f.Node != "" {
		next = fmt.Sprintf("or the next one, beside %s, the nearest node is %s: %s.", plural(int64(f.Most), "it", "them"), f.Node, f.Lack)
		if f.Most == 0 {
			next = fmt.Sprintf("he nearest node is %s: %s.", f.Node, f.Lack)
		}
	}
	letters := [2]string{"f", "F"}
	if f.Most == 0 {
		letters = [2]string{"t", "T"}
	}
	switch {
	case f.Wider != "" && next == "":
		return ""
	case f.Wider != "":
		return " " + letters[1] + next
	}
	text := g.fit(f)
	if next == "" {
		return text + "."
	}
	return text + "; " + letters[0] + next
}

// fit says how many members fit.
func (g *gangWorld) fit(f *gang.Refusal) string {
	if f.Rough {
		return " How many of its members fit is not known: they are of too many kinds"
	}
	where := ""
	if level := g.levelName(g.required); level != "" && f.Domain != "" {
		where = fmt.Sprintf(" in one %s (%s)", level, f.Domain)
	}
	if f.Most == 0 {
		return " No member fits" + where
	}
	return fmt.Sprintf(" At most %d of its %d members fit%s", f.Most, len(g.in.Members), where)
}

// totals count the devices that the least number of members requests of a resource, and those of the cluster.
type totals struct {
	resource string
	// want is what the members request that have no node, all what the nodes have, usable what can be allocated, free what no pod has.
	want   int64
	all    int64
	usable int64
	free   int64
}

// totals returns them for each resource of GPUs that is requested, in the order of the requests.
func (g *gangWorld) totals() []totals {
	var result []totals
	for _, m := range g.in.Members[:g.min] {
		if m.Node != "" {
			continue
		}
		for _, d := range g.classes[m.Class].demands() {
			at := slices.IndexFunc(result, func(t totals) bool { return t.resource == d.resource })
			if at < 0 {
				at = len(result)
				made := totals{resource: d.resource}
				for i := range g.nodes() {
					s := g.nodes()[i].stock(&d)
					made.all, made.usable, made.free = made.all+s.all, made.usable+s.usable, made.free+s.free
				}
				result = append(result, made)
			}
			result[at].want += d.want
		}
	}
	return result
}

// dominant says why the least number of members does not fit, wherever they are: by what the cluster has in all, by the rules of the
// members, or by how what is free is spread.
func (g *gangWorld) dominant(r *asked) (Code, string) {
	who := fmt.Sprintf("its %d members", g.min)
	if g.in.Placed > 0 {
		who = fmt.Sprintf("the %d members that lack", g.min-g.in.Placed)
	}
	if g.min-g.in.Placed == 1 {
		who = "the next member"
	}
	requests := plural(int64(g.min-g.in.Placed), "requests", "request")
	list := g.totals()
	for _, t := range list {
		switch what := fmt.Sprintf("%s %s %d %s", who, requests, t.want, t.resource); {
		case t.all == 0:
			return g.ofClass(r)
		case t.all-g.held(t.resource) < t.want:
			return FewGPUs, fmt.Sprintf("%s, and the cluster has %d in all.", what, t.all)
		}
	}
	if code, text, ok := g.byRules(r); ok {
		return code, text
	}
	for _, t := range list {
		switch what := fmt.Sprintf("%s %s %d %s", who, requests, t.want, t.resource); {
		case t.usable-g.held(t.resource) < t.want:
			return Health, fmt.Sprintf("%s, and of the %d of the cluster %d can be allocated.", what, t.all, t.usable)
		case t.free < t.want:
			return InUse, fmt.Sprintf("%s, and of the %d of the cluster %d are free.", what, t.all, t.free)
		}
	}
	code, text := g.ofClass(r)
	if other, why, lacks := g.lacksOther(code, who, requests); lacks {
		return other, why
	}
	if len(list) > 0 && (code == InUse || code == Scattered) {
		t := &list[0]
		return Scattered, fmt.Sprintf("%s %s %d %s, and the %d that are free are not where they fit.", who, requests, t.want, t.resource, t.free)
	}
	return code, text
}

// lacksOther is the reason of a gang of which several members together request more of something beside GPUs than is free on the nodes that
// they can use, where the reason of the first one that does not fit is one that the others cause.
func (g *gangWorld) lacksOther(first Code, who, requests string) (Code, string, bool) {
	if g.min-g.in.Placed < 2 || first != InUse && first != OtherInUse && first != PodLimit {
		return "", "", false
	}
	for _, name := range g.otherNames() {
		want, all, free := int64(0), int64(0), int64(0)
		for _, m := range g.in.Members[:g.min] {
			if m.Node == "" {
				want += g.classes[m.Class].others[name]
			}
		}
		for i := range g.nodes() {
			open := func(w *world) bool { return w.others[name] > 0 && len(w.nodes[i].Blocks) == 0 }
			if slices.ContainsFunc(g.classes, open) {
				o := g.other(name, i)
				all, free = all+o.All, free+max(0, o.Free)
			}
		}
		switch {
		case want <= free:
		case name == pods:
			return PodLimit, fmt.Sprintf("%s are %d pods, and the nodes that they can use take %d more.", who, want, free), true
		default:
			return OtherInUse, fmt.Sprintf("%s %s %d %s, and of the %d of the nodes that they can use %d are free.", who, requests, want, name, all, free), true
		}
	}
	return "", "", false
}

// held counts the devices of a resource that the members of the gang have.
func (g *gangWorld) held(resource string) (sum int64) {
	for _, m := range g.in.Members {
		if m.Node == "" {
			continue
		}
		for _, d := range g.classes[m.Class].demands() {
			if d.resource == resource {
				sum += d.want
			}
		}
	}
	return sum
}

// byRules is the reason of a gang that would fit if its members could use all nodes: the rule that keeps them from most nodes.
func (g *gangWorld) byRules(r *asked) (Code, string, bool) {
	open, blocked := g.open()
	if !blocked || !open.fits() {
		return "", "", false
	}
	w := g.next(r)
	var rules []Block
	names := map[Block][]string{}
	for i := range w.nodes {
		n := &w.nodes[i]
		if len(n.Blocks) == 0 || !w.hasSome(n) {
			continue
		}
		rule := Block{Code: n.Blocks[0].Code, Key: n.Blocks[0].Key}
		if names[rule] == nil {
			rules = append(rules, rule)
		}
		names[rule] = append(names[rule], n.Name)
	}
	if len(rules) == 0 {
		return "", "", false
	}
	slices.SortStableFunc(rules, func(a, b Block) int { return cmp.Compare(len(names[b]), len(names[a])) })
	rule := rules[0]
	where := names[rule]
	if rule.Code == Selector {
		return Selector, fmt.Sprintf("its members require %s, which %s %s not have.", rule.Key, some(where), plural(int64(len(where)), "does", "do")), true
	}
	worst := Obstacle{Code: rule.Code, Key: rule.Key}
	if first := w.find(where[0]); first != nil {
		worst.Text = first.Blocks[0].Text
	}
	text := w.state(&Group{Code: rule.Code, Worst: worst}, where)
	text = strings.ReplaceAll(text, "it does not tolerate", "its members do not tolerate")
	return rule.Code, strings.ReplaceAll(text, "what it requests", "what a member requests"), true
}

// open is the world in which members can use all nodes. The result is false where they can anyway.
func (g *gangWorld) open() (*gangWorld, bool) {
	open, blocked := *g, false
	open.classes = make([]*world, len(g.classes))
	for c, w := range g.classes {
		made := *w
		made.nodes = slices.Clone(w.nodes)
		for i := range made.nodes {
			blocked = blocked || len(made.nodes[i].Blocks) > 0
			made.nodes[i].Blocks = nil
		}
		open.classes[c] = &made
	}
	return &open, blocked
}

// next is the world of the class of the first member that does not fit.
func (g *gangWorld) next(r *asked) *world {
	at := min(r.refusal.Most, len(g.in.Members)-1)
	return g.classes[g.in.Members[at].Class]
}

// ofClass is the reason why the first member that does not fit finds no node, as that of a pod.
func (g *gangWorld) ofClass(r *asked) (Code, string) {
	w := g.next(r)
	var pod Answer
	verdicts := w.judge(&pod)
	if len(pod.Fitting) > 0 {
		return InUse, fmt.Sprintf("%s, and %s a place for one.", g.together(), plural(int64(len(pod.Fitting)), "1 node has", fmt.Sprintf("%d nodes have", len(pod.Fitting))))
	}
	w.dominate(&pod, verdicts)
	because := strings.TrimPrefix(pod.Sentence, waits(""))
	for _, word := range []string{" requests ", " accepts ", " does not tolerate ", " needs ", " requires"} {
		because = strings.ReplaceAll(because, "it"+word, "a member"+word)
	}
	return pod.Code, because
}

// groups are the nodes that have no place for the first member that does not fit.
func (g *gangWorld) groups(r *asked) []Group {
	w := g.next(r)
	var pod Answer
	return group(w.judge(&pod))
}
