package why

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet/gang"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// Reasons of a gang. A gang that does not fit has also the codes of pods.
const (
	// GangInvalid: what its pods or its PodGroup say cannot be used.
	GangInvalid Code = "GangInvalid"
	// GangNoGroup: the PodGroup that its pods name does not exist, or is being deleted.
	GangNoGroup Code = "PodGroupMissing"
	// GangIncomplete: fewer members exist than have to start together.
	GangIncomplete Code = "GangIncomplete"
	// GangGated: so many members have scheduling gates that too few are left.
	GangGated Code = "GangGated"
	// GangPlaced: all members have nodes. GangSurplus: the least number of them have, others wait. GangInPart: fewer than that have.
	GangPlaced  Code = "GangPlaced"
	GangSurplus Code = "GangSurplusWaits"
	GangInPart  Code = "GangPlacedInPart"
	// GangNoLevel: no node has the label of the level that it requires.
	GangNoLevel Code = "TopologyLevelMissing"
	// GangLevel: it fits on a wider level than the one that it requires.
	GangLevel Code = "TopologyLevel"
	// GangApart: members that have nodes are not in one domain of the level that it requires.
	GangApart Code = "GangApart"
	// GangKinds: it has too many kinds of members.
	GangKinds Code = "TooManyKinds"
)

// MaxClasses is how many classes the members of a gang can have for an answer.
const MaxClasses = 32

// GangInput is what an answer about a gang is computed from. Nothing of it is changed.
type GangInput struct {
	// Key tells gangs apart, Name is its NAMESPACE/NAME.
	Key  string
	Name string
	// Stop is what keeps schedulers from planning it; the zero value is nothing.
	Stop GangStop
	// Min is how many members have to start together, Done how many of these have succeeded.
	Min  int
	Done int
	// Placed is how many members have a node.
	Placed int
	// Continues is true for a gang that has lost members, the others of which go on.
	Continues bool
	// Classes are the classes of members, each as the question about its first pod, on the same nodes in the same order.
	Classes []Input
	// Alone tells for each class whether two members of it do not run on one node.
	Alone []bool
	// Members are those that exist, in the order in which they are placed.
	Members []GangMember
	// Levels are the names of the levels, the widest first, without that of the node. Domains are those of each node, by its name.
	Levels  []string
	Domains map[string][]string
	// Required, Preferred and Segment are those of gang.Gang.
	Required  int
	Preferred int
	Segment   gang.Segment
	// Commands say what to do for a change of the gang.
	Commands GangCommands
	// Notes are what is not known, one sentence each.
	Notes []string
}

// GangMember is a member of a gang.
type GangMember struct {
	// Class is its position in GangInput.Classes.
	Class int
	// Node is where it is bound; empty is nowhere.
	Node string
}

// GangStop is what keeps a gang from being planned.
type GangStop struct {
	Code Code
	// Text says it in a sentence without its end.
	Text string
	// Gates are the scheduling gates of a member, the first of which counts.
	Gates []string
}

// Value stands for the new value in GangCommands.
const Value = "\x00"

// GangCommands are commands, or instructions in words. They have Value where the new value has to be.
type GangCommands struct {
	// Minimum sets the least number of members, Level the level that is required, NoLevel removes it. Show shows the members.
	Minimum string
	Level   string
	NoLevel string
	Show    string
}

// GangFacts are what is said about the gang beside the reason.
type GangFacts struct {
	// Level and Domain are where the members fit, or where most of them do; empty for the whole fleet.
	Level  string
	Domain string
	// Most is how many members fit there, those that have nodes included.
	Most int
}

// ExplainGang says why a gang waits, as Explain does for a pod.
func ExplainGang(in GangInput) Answer {
	answer := Answer{Notes: in.Notes, Gang: &GangFacts{}}
	if len(in.Classes) == 0 || len(in.Members) == 0 {
		answer.Code, answer.Sentence, answer.Changes = in.Stop.Code, in.stopSentence(), in.stopChanges()
		return answer
	}
	g := newGangWorld(&in)
	first := &in.Classes[0]
	answer.Nodes, answer.If = len(first.Nodes), strings.ReplaceAll(first.assumed(g.classes[0]), "it requested", "each member requested")
	answer.Notes = append(notes(first, g.classes[0]), in.Notes...)
	g = g.with(first.assumptions(g.classes[0]))
	switch {
	case in.Stop.Code == GangGated:
		g.stopped(&answer)
	case in.Stop.Code != "":
		answer.Code, answer.Sentence, answer.Changes = in.Stop.Code, in.stopSentence(), in.stopChanges()
	case in.Placed == len(in.Members):
		answer.Code, answer.Sentence = GangPlaced, fmt.Sprintf("The gang does not wait: all %s.", have(in.Placed))
		g.locate(&answer)
	default:
		g.explain(&answer)
	}
	return answer
}

// stopSentence is the sentence of a gang that is not planned.
func (in *GangInput) stopSentence() string {
	if in.Stop.Code == GangInvalid {
		return "The gang waits because of what its pods or its PodGroup say: " + in.Stop.Text + "."
	}
	return "The gang waits because " + in.Stop.Text + "."
}

// stopChanges are what ends it.
func (in *GangInput) stopChanges() []Change {
	switch in.Stop.Code {
	case GangGated:
		if len(in.Stop.Gates) == 0 {
			return nil
		}
		return (&Stop{Code: Gated, Names: in.Stop.Gates}).changes()
	case GangNoGroup:
		return []Change{{Text: "Create the PodGroup, or correct its name in the pods."}}
	case GangIncomplete:
		return []Change{{Text: "What creates the pods has to create the others.", Do: []string{in.Commands.Show}}}
	}
	return nil
}

// least is how many members have to have a node together.
func (in *GangInput) least() int { return in.Min - in.Done }

// stopped is the answer for a gang whose members have scheduling gates. What it would find without them is a note.
func (g *gangWorld) stopped(answer *Answer) {
	in := g.in
	answer.Code, answer.Sentence, answer.Changes = in.Stop.Code, in.stopSentence(), in.stopChanges()
	r := g.ask()
	if r.refusal == nil {
		answer.Notes = append(answer.Notes, fmt.Sprintf("It would fit %s now.", g.where(&r)))
		return
	}
	_, because := g.because(&r)
	answer.Notes = append(answer.Notes, "After that: The gang waits because "+because)
	answer.Groups = g.groups(&r)
}

// explain is the answer for a gang of which members wait for nodes.
func (g *gangWorld) explain(answer *Answer) {
	in := g.in
	begin := ""
	switch {
	case in.Placed >= in.least():
		more := *g
		more.min = in.Placed + 1
		g = &more
		answer.Code = GangSurplus
		begin = fmt.Sprintf("The gang has its least number of members on nodes, %d of %d, and %s.", in.Placed, len(in.Members), waiting(len(in.Members)-in.Placed))
	case in.Placed > 0 && in.Continues:
		answer.Code = GangInPart
		begin = fmt.Sprintf("The gang has lost members: %d of at least %d have nodes and go on, and %s for the place of others.", in.Placed, in.least(), waiting(len(in.Members)-in.Placed))
	case in.Placed > 0:
		answer.Code = GangInPart
		begin = fmt.Sprintf("The gang is placed in part: %d of at least %d members have nodes. The scheduler places the others, or deletes these within 30 s, so that they hold nothing.",
			in.Placed, in.least())
	}
	r := g.ask()
	g.note(answer, &r)
	if r.refusal == nil {
		code, text := g.fitting(answer, &r)
		answer.Code, answer.Sentence = cmp.Or(answer.Code, code), joinSentences(begin, text)
		return
	}
	code, because := g.because(&r)
	text := "The gang waits because " + because
	if begin != "" {
		text = "The others wait because " + because
	}
	answer.Code, answer.Sentence = cmp.Or(answer.Code, code), joinSentences(begin, text)
	answer.Groups = g.groups(&r)
	g.propose(answer, &r)
}

func joinSentences(a, b string) string {
	if a == "" {
		return b
	}
	return a + " " + b
}

// have counts members that have a node.
func have(count int) string {
	return fmt.Sprintf("%d %s", count, plural(int64(count), "member has a node", "members have nodes"))
}

func waiting(count int) string {
	return fmt.Sprintf("%d %s", count, plural(int64(count), "waits", "wait"))
}

// fitting is the sentence for a gang that fits.
func (g *gangWorld) fitting(answer *Answer, r *asked) (Code, string) {
	in := &g.in.Classes[0]
	where := g.where(r)
	var skipped []string
	var reserved *Reserved
	for c := range g.in.Classes {
		skipped, reserved = append(skipped, g.in.Classes[c].Pod.NotJudged...), cmp.Or(reserved, g.in.Classes[c].Pod.Reserved)
	}
	switch {
	case answer.If != "":
		return Fits, fmt.Sprintf("The gang fits %s.", where)
	case reserved != nil:
		return Reserves, fmt.Sprintf("The gang fits %s now%s", where, reserved.sentence())
	case len(skipped) > 0:
		return Fits, fmt.Sprintf("The gang fits %s now as far as can be seen here; what is not checked: %s.", where, phrase.And(distinct(skipped)))
	case in.Pod.Unseen:
		return NoScheduler, fmt.Sprintf("The gang fits %s now, but waits for the scheduler %q, and no pod of the cluster shows that it runs.", where, in.Pod.Scheduler)
	case in.Now > 0 && g.created() > 0 && in.Now-g.created() < young:
		return Fits, fmt.Sprintf("The gang fits %s now; its last member was created %d s ago.", where, max(0, in.Now-g.created()))
	}
	return Fits, fmt.Sprintf("The gang fits %s now; the scheduler %s has not assigned it yet.", where, in.Pod.Scheduler)
}

// created is when the last of its classes came.
func (g *gangWorld) created() (last int64) {
	for c := range g.in.Classes {
		last = max(last, g.in.Classes[c].Pod.Created)
	}
	return last
}

// note keeps what was asked as facts.
func (g *gangWorld) note(answer *Answer, r *asked) {
	if r.refusal != nil {
		answer.Gang.Level, answer.Gang.Domain, answer.Gang.Most = r.refusal.Level, r.refusal.Domain, r.refusal.Most
		return
	}
	answer.Gang.Level, answer.Gang.Domain, answer.Gang.Most = g.levelName(r.plan.Level), r.plan.Domain, r.plan.Placed
}

// locate finds where the members of a gang are, all of which have nodes.
func (g *gangWorld) locate(answer *Answer) {
	if r := g.ask(); r.refusal == nil {
		g.note(answer, &r)
	}
}
