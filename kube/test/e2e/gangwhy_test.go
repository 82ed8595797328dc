package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// gangSituation is a gang that waits.
type gangSituation struct {
	// prepare makes what it waits for.
	prepare func(t *testing.T, l *whyLab)
	// members are the pods that are created, each with 8 GPUs, beside those that have nodes; minimum, if not 0, is another number that has
	// to start together.
	placed, members, minimum int
	annotations              map[string]string
	change                   func(*corev1.Pod)
	// code is the reason. acts are the kinds of the acts of the first change; none where it is an instruction alone.
	code string
	acts []string
	// others are kinds of which other changes have all their acts.
	others []string
	// help does what the instruction of the first change says.
	help func(t *testing.T, l *whyLab)
}

// TestGangWhy makes gangs wait, asks berth why, and applies each change that it proposes, one at a time: by the command that it prints,
// where it prints one. The gang gets its nodes then.
func TestGangWhy(t *testing.T) {
	onOwnCluster(t, 2)
	l := newWhyLab(t)
	situations, applied := gangSituations(), 0
	for _, name := range slices.Sorted(maps.Keys(situations)) {
		s := situations[name]
		t.Run(name, func(t *testing.T) {
			changes := 1
			for i := 0; i < changes; i++ {
				t.Run(fmt.Sprintf("Change%d", i+1), func(t *testing.T) {
					why := l.situation(t, &s)
					if i == 0 {
						t.Log(why.Sentence)
						s.check(t, &why)
						l.checkText(t, &why)
						changes = len(why.Changes)
					}
					if i >= len(why.Changes) {
						t.Fatalf("berth why proposes %d changes now: %+v", len(why.Changes), why.Changes)
					}
					l.apply(t, &s, &why.Changes[i])
					applied++
				})
			}
		})
	}
	t.Logf("%d changes were applied", applied)
}

func gangSituations() map[string]gangSituation {
	rack := map[string]string{"berth.dev/topology-required": "rack"}
	ends := func(t *testing.T, l *whyLab, index int) { l.busy(t, index, 2, nil) }
	return map[string]gangSituation{
		"RackTooSmall": {members: 3, annotations: rack, code: "TopologyLevel", acts: []string{"OtherLevel"},
			others: []string{"RequestGPUs", "FewerMembers"}},
		"NoLevel": {members: 4, annotations: map[string]string{"berth.dev/topology-required": "block"}, code: "TopologyLevelMissing",
			acts: []string{"OtherLevel"}},
		"NoSuchLevel": {members: 8, annotations: map[string]string{"berth.dev/topology-required": "example.com/hall"},
			code: "TopologyLevelMissing", acts: []string{"OtherLevel"}},
		"MinimumTooLarge": {members: 9, code: "TooFewGPUs", acts: []string{"FewerMembers"}, others: []string{"RequestGPUs", "AddNode"}},
		"FewerGPUs": {prepare: func(t *testing.T, l *whyLab) {
			for i := range gangNodes {
				ends(t, l, i)
			}
		}, members: 8, code: "GPUsInUse", acts: []string{"RequestGPUs"}, others: []string{"EndPod", "AddNode"}},
		"OnePodEnds": {prepare: func(t *testing.T, l *whyLab) { ends(t, l, 3) }, members: 8, code: "GPUsScattered",
			acts: []string{"EndPod"}, others: []string{"RequestGPUs", "FewerMembers", "AddNode"}},
		"GangEnds": {prepare: func(t *testing.T, l *whyLab) {
			l.gang(t, "other", 2, 2, func(pod *corev1.Pod) { requestGPUs(&pod.Spec.Containers[0], 5) })
		}, members: 8, code: "GPUsInUse", acts: []string{"FewerMembers"}, others: []string{"RequestGPUs", "EndPod", "AddNode"}},
		"Cordoned": {prepare: func(t *testing.T, l *whyLab) { l.patch(t, 7, `{"spec":{"unschedulable":true}}`) }, members: 8,
			code: "NodeCordoned", acts: []string{"Uncordon"}, others: []string{"FewerMembers", "AddNode"}},
		"Taint": {prepare: func(t *testing.T, l *whyLab) {
			l.patch(t, 5, `{"spec":{"taints":[{"key":"team","value":"vision","effect":"NoSchedule"}]}}`)
		}, members: 8, code: "Taint", acts: []string{"Tolerate"}, others: []string{"FewerMembers", "AddNode"}},
		"Selector": {prepare: func(t *testing.T, l *whyLab) {
			for i := range 3 {
				l.patch(t, i, `{"metadata":{"labels":{"pool":"a"}}}`)
			}
		}, members: 4, change: func(pod *corev1.Pod) { pod.Spec.NodeSelector["pool"] = "a" }, code: "NodeSelector",
			acts: []string{"SelectLess"}, others: []string{"FewerMembers", "AddNode"}},
		"Model": {members: 2, change: func(pod *corev1.Pod) { pod.Spec.NodeSelector[productLabel] = "NVIDIA-B200" }, code: "WrongModel",
			acts: []string{"AcceptModel"}},
		"Misspelt": {members: 2, change: func(pod *corev1.Pod) {
			if _, ok := pod.Spec.Containers[0].Resources.Limits[gpuResource]; ok {
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpus": resource.MustParse("8")}
			}
		}, code: "NoResource", acts: []string{"RequestResource"}},
		"LostMember": {prepare: func(t *testing.T, l *whyLab) {
			l.gang(t, "train", 8, 8, nil)
			lost := l.members(t)[3]
			l.cleanUp(t, &lost)
			ends(t, l, slices.Index(l.APINodeNames(), lost.Spec.NodeName))
		}, placed: 7, members: 1, minimum: 8, code: "GangPlacedInPart", acts: []string{"EndPod"}, others: []string{"AddNode"}},
		"PodGroup": {prepare: func(t *testing.T, l *whyLab) { l.podGroup(t, 9) }, members: 9, change: func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "train"}
		}, code: "TooFewGPUs", acts: []string{"FewerMembers"}, others: []string{"RequestGPUs", "AddNode"}},
		"AnotherNode": {members: 9, minimum: 8, code: "GangSurplusWaits", acts: []string{"AddNode"}},
		"Segments": {prepare: func(t *testing.T, l *whyLab) {
			for _, i := range []int{0, 2, 4} {
				ends(t, l, i)
			}
		}, members: 4, annotations: map[string]string{"berth.dev/topology-segment": "rack", "berth.dev/topology-segment-size": "2"},
			code: "GPUsScattered", acts: []string{"EndPod"}},
		"MissingMembers": {members: 3, minimum: 4, code: "GangIncomplete",
			help: func(t *testing.T, l *whyLab) { l.member(t, "train", 4, nil) }},
		"Gated": {members: 4, change: func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/hold"}}
		}, code: "GangGated", help: func(t *testing.T, l *whyLab) {
			patch, pods := []byte(`{"spec":{"schedulingGates":null}}`), l.Client().CoreV1().Pods(metav1.NamespaceDefault)
			for _, pod := range l.members(t) {
				if _, err := pods.Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}},
	}
}

// situation makes a situation, asks why the gang waits, and removes everything after the test.
func (l *whyLab) situation(t *testing.T, s *gangSituation) v1alpha1.Why {
	t.Helper()
	t.Cleanup(func() { l.restore(t) })
	if s.prepare != nil {
		s.prepare(t, l)
	}
	l.makeMembers(t, s, s.members, nil)
	if s.help == nil {
		l.waitRefused(t)
	}
	var why v1alpha1.Why
	waitUntil(t, 20*time.Second, "the gang waits because of "+s.code, func(context.Context) error {
		why = l.ask(t)
		if why.Code != s.code {
			return fmt.Errorf("berth why says %s: %s", why.Code, why.Sentence)
		}
		return nil
	})
	return why
}

// makeMembers creates members of the gang.
func (l *whyLab) makeMembers(t *testing.T, s *gangSituation, count int, more func(*corev1.Pod)) {
	t.Helper()
	for range count {
		l.member(t, "train", cmp.Or(s.minimum, s.members), func(pod *corev1.Pod) {
			maps.Copy(pod.Annotations, s.annotations)
			if s.change != nil {
				s.change(pod)
			}
			if more != nil {
				more(pod)
			}
		})
	}
}

// ask asks berth why about the gang, as an object and as text.
func (l *whyLab) ask(t *testing.T) (why v1alpha1.Why) {
	t.Helper()
	result := l.berth(t, "why", "gang/train", "--kubeconfig", l.KubeconfigPath(), "-o", "json")
	if err := json.Unmarshal([]byte(result.out), &why); err != nil || result.code != 0 {
		t.Fatalf("berth why: exit code %d, %v\n%s%s", result.code, err, result.out, result.err)
	}
	return why
}

// check checks the answer, and that the text says the same as the object.
func (s *gangSituation) check(t *testing.T, why *v1alpha1.Why) {
	t.Helper()
	if len(why.Changes) == 0 {
		t.Fatalf("berth why proposes no change: %s", why.Sentence)
	}
	var acts []string
	for _, a := range why.Changes[0].Acts {
		if !slices.Contains(acts, a.Kind) {
			acts = append(acts, a.Kind)
		}
	}
	if !slices.Equal(acts, s.acts) {
		t.Errorf("the first change is %+v; want %v", why.Changes[0], s.acts)
	}
	for _, kind := range s.others {
		if !slices.ContainsFunc(why.Changes[1:], func(c v1alpha1.WhyChange) bool {
			return !slices.ContainsFunc(c.Acts, func(a v1alpha1.WhyAct) bool { return a.Kind != kind })
		}) {
			t.Errorf("no other change is %s: %+v", kind, why.Changes)
		}
	}
}

// checkText checks that the text has what the object has.
func (l *whyLab) checkText(t *testing.T, why *v1alpha1.Why) {
	t.Helper()
	result := l.berth(t, "why", "gang/train", "--kubeconfig", l.KubeconfigPath())
	want := []string{why.Sentence}
	for _, c := range why.Changes {
		want = append(append(want, c.Message), c.Do...)
	}
	for _, text := range want {
		if result.code != 0 || !strings.Contains(result.out, text) {
			t.Errorf("berth why: exit code %d\n%s%s\nwant %q", result.code, result.out, result.err, text)
		}
	}
}

// apply does what a change says, and waits until the gang has its nodes.
func (l *whyLab) apply(t *testing.T, s *gangSituation, c *v1alpha1.WhyChange) {
	t.Helper()
	var err error
	want, began := s.placed+s.members, time.Now()
	if s.minimum > 0 && len(c.Acts) == 0 {
		want = s.minimum
	}
	if len(c.Acts) == 0 {
		if s.help == nil {
			t.Fatalf("berth why says only %q, %q", c.Message, c.Do)
		}
		s.help(t, l)
	}
	var again []v1alpha1.WhyAct
	for _, act := range c.Acts {
		switch act.Kind {
		case "FewerMembers":
			want = int(act.Count)
		case "AddNode":
			l.addNodes(t, &act)
		case "RequestGPUs", "Tolerate", "SelectLess", "AcceptModel", "RequestResource":
			again = append(again, act)
		case "OtherLevel", "EndPod", "Uncordon":
		default:
			t.Fatalf("berth why proposes %+v, which the test cannot do", act)
		}
	}
	for _, do := range c.Do {
		if strings.HasPrefix(do, "kubectl ") {
			l.command(t, do)
		}
	}
	if len(again) > 0 {
		l.makeAgain(t, s, again)
	}
	if found := membersFit.FindStringSubmatch(c.Message); found != nil {
		if want, err = strconv.Atoi(found[1]); err != nil {
			t.Fatal(err)
		}
	}
	nodes := l.waitPlaced(t, "train", want)
	t.Logf("%d members have nodes %v after the change %q", want, time.Since(began).Round(time.Millisecond), c.Message)
	if found := levelFits.FindStringSubmatch(c.Message); found != nil {
		l.checkDomain(t, found[1], nodes)
	}
}

var (
	// membersFit is what a change says of the number of members, where not all fit; levelFits what it says of the level.
	membersFit = regexp.MustCompile(` with ([0-9]+) of its [0-9]+ members `)
	levelFits  = regexp.MustCompile(` in one (rack|zone) \([^)]*\)\.$`)
)

// checkDomain checks that nodes are in one domain of a level.
func (l *whyLab) checkDomain(t *testing.T, level string, nodes []string) {
	t.Helper()
	domains := map[string]bool{}
	for _, name := range nodes {
		node, err := l.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		domains[node.Labels["topology.kubernetes.io/"+level]] = true
	}
	if len(domains) != 1 {
		t.Errorf("the members are on %v, in the domains %v of the level %s; want one", nodes, slices.Sorted(maps.Keys(domains)), level)
	}
}

// command runs a command that berth why prints.
func (l *whyLab) command(t *testing.T, line string) {
	t.Helper()
	cmd := exec.CommandContext(timeout(t, 20*time.Second), "bash", "-c", line)
	cmd.Env = append(os.Environ(), envKubectl+"="+l.Dir(), "PATH="+filepath.Dir(l.kubectl)+":/usr/bin:/bin")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// makeAgain creates the members that wait again, with changes of what they request and accept.
func (l *whyLab) makeAgain(t *testing.T, s *gangSituation, acts []v1alpha1.WhyAct) {
	t.Helper()
	var old []*corev1.Pod
	for _, pod := range l.members(t) {
		if pod.Spec.NodeName == "" {
			old = append(old, &pod)
		}
	}
	l.cleanUp(t, old...)
	l.makeMembers(t, s, len(old), func(pod *corev1.Pod) {
		for _, act := range acts {
			changePod(t, &pod.Spec, act)
		}
	})
}
