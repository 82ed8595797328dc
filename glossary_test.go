package berth_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// plainPackages use none of the words that docs/glossary.md replaces. Other packages join the list when they are clean.
var plainPackages = []string{
	"api/crds",
	"api/v1alpha1",
	"cmd/berth",
	"cmd/berth-agent",
	"cmd/berth-cdi-hook",
	"cmd/berth-operator",
	"hack",
	"hack/classgen",
	"hack/clidocs",
	"hack/images",
	"hack/images/command",
	"hack/images/image",
	"hack/images/program",
	"hack/images/publish",
	"hack/images/sbom",
	"hack/krew",
	"hack/privdocs",
	"hack/runstage",
	"hack/stage",
	"internal/cli",
	"internal/cli/complete",
	"internal/cli/doctor",
	"internal/cli/evidence",
	"internal/cli/fit",
	"internal/cli/replayplot",
	"internal/cli/simcmd",
	"internal/cli/term",
	"internal/cli/uninstall",
	"internal/cli/usage",
	"internal/cli/version",
	"internal/cluster/operator",
	"internal/cluster/operator/command",
	"internal/cluster/operator/definitions",
	"internal/cluster/operator/gpunodes",
	"internal/cluster/operator/gpuquota",
	"internal/cluster/operator/stack",
	"internal/cluster/operator/validation",
	"internal/cluster/replay",
	"internal/cluster/whatif",
	"internal/core",
	"internal/core/fleet",
	"internal/core/why",
	"internal/cluster/whyview",
	"internal/cluster/gangplan",
	"internal/cluster/gangview",
	"internal/core/gate",
	"internal/core/gpu",
	"internal/core/health",
	"internal/core/labelset",
	"internal/core/mig",
	"internal/core/mig/migtest",
	"internal/core/nodeop",
	"internal/core/placement",
	"internal/core/placement/shared",
	"internal/core/problem",
	"internal/core/problem/internal/docgen",
	"internal/core/quota",
	"internal/core/safetext",
	"internal/core/spelling",
	"internal/core/trace",
	"internal/core/version",
	"internal/hardware",
	"internal/hardware/bound",
	"internal/hardware/hostpath",
	"internal/hardware/nvidia",
	"internal/hardware/nvidia/cdiedits",
	"internal/hardware/nvidia/cdihook",
	"internal/hardware/nvidia/cuda",
	"internal/hardware/nvidia/gpulabels",
	"internal/hardware/nvidia/smi",
	"internal/hardware/nvidiatest",
	"internal/hardware/sim",
	"internal/hardware/sim/internal/gen",
	"internal/hardware/sim/profile",
	"internal/hardware/sim/tools",
	"internal/node",
	"internal/node/agent/actor",
	"internal/node/agent/apichoice",
	"internal/node/agent/command",
	"internal/node/agent/configsync",
	"internal/node/agent/drasync",
	"internal/node/agent/flags",
	"internal/node/agent/gatesync",
	"internal/node/agent/gpuhistory",
	"internal/node/agent/gpunodesync",
	"internal/node/agent/grants",
	"internal/node/agent/handover",
	"internal/node/agent/hardware",
	"internal/node/agent/healthsync",
	"internal/node/agent/injection",
	"internal/node/agent/inspect",
	"internal/node/agent/kubeletsync",
	"internal/node/agent/labelsync",
	"internal/node/agent/library",
	"internal/node/agent/logqueue",
	"internal/node/agent/metricsync",
	"internal/node/agent/migsync",
	"internal/node/agent/mpssync",
	"internal/node/agent/nodeview",
	"internal/node/agent/onhost",
	"internal/node/agent/publishers",
	"internal/node/agent/reset",
	"internal/node/agent/serve",
	"internal/node/agent/startup",
	"internal/node/agent/timeslice",
	"internal/node/agent/validatecmd",
	"internal/node/allocatable",
	"internal/node/cdi",
	"internal/node/config",
	"internal/node/config/internal/schemagen",
	"internal/node/configwatch",
	"internal/node/deviceplugin",
	"internal/node/deviceplugin/fakekubelet",
	"internal/node/dra/class",
	"internal/node/dra/classcheck",
	"internal/node/dra/pool",
	"internal/node/dra",
	"internal/node/dra/calls",
	"internal/node/dra/claims",
	"internal/node/dra/claimstatus",
	"internal/node/dra/prepared",
	"internal/node/dra/publish",
	"internal/node/gatefacts",
	"internal/node/gpunode",
	"internal/node/hostconfig",
	"internal/node/hostruntime",
	"internal/node/hostruntime/hosttest",
	"internal/node/inventory",
	"internal/node/kubelet",
	"internal/node/kubelet/checkpoint",
	"internal/node/labels",
	"internal/node/ledger",
	"internal/node/metrics",
	"internal/node/metrics/internal/docgen",
	"internal/node/migapply",
	"internal/node/migwants",
	"internal/node/mps",
	"internal/node/nodeapi",
	"internal/node/nodeapi/fakeapi",
	"internal/node/offer",
	"internal/node/openers",
	"internal/node/pages",
	"internal/node/podwatch",
	"internal/node/problems",
	"internal/node/signal",
	"internal/node/stackfile",
	"internal/node/statefile",
	"internal/node/validate",
	"internal/node/validationfiles",
	"kube/cmd/berth-sandbox",
	"kube/cmd/hyperkube",
	"kube/cmd/workload",
	"kube/internal/sandbox",
	"kube/internal/sandbox/command",
	"kube/internal/sandbox/fakecri",
	"kube/internal/workload",
	"kube/test/devicemanager",
	"kube/test/dra",
	"kube/test/e2e",
}

// replacedWords reads the second table of the glossary: word to replacement.
func replacedWords(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Words that are not used")
	words := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.+) \\|$").FindAllStringSubmatch(table, -1) {
		words[row[1]] = row[2]
	}
	if len(words) < 10 {
		t.Fatalf("the glossary replaces only %d words", len(words))
	}
	return words
}

// TestWordsOfTheGlossary looks for replaced words in the documents and in the packages that are clean already.
func TestWordsOfTheGlossary(t *testing.T) {
	files := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/cli/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(found))
		}
		files = append(files, found...)
	}
	for _, path := range goFiles(t) {
		if slices.Contains(plainPackages, filepath.Dir(path)) {
			files = append(files, path)
		}
	}
	words := replacedWords(t)
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if path != "docs/glossary.md" {
			for _, found := range replaced(string(text), words) {
				t.Errorf("%s: %s", path, found)
			}
		}
	}
}

// replaced returns the replaced words of a text, with what to write.
func replaced(text string, words map[string]string) []string {
	var found []string
	plain := strings.ToLower(strings.Join(strings.Fields(strings.ReplaceAll(text, "//", " ")), " "))
	for word, instead := range words {
		if strings.Contains(plain, word) && regexp.MustCompile(`\b`+regexp.QuoteMeta(word)+`\b`).MatchString(plain) {
			found = append(found, "write "+instead+" in place of "+word)
		}
	}
	slices.Sort(found)
	return found
}

// TestWordsAreFound proves that the check above can fail, over the end of a comment's line too.
func TestWordsAreFound(t *testing.T) {
	words := map[string]string{"in vain": "without success", "mend": "fix"}
	if found := replaced("// It tries in\n// vain.\nfunc recommend() {}\n", words); !slices.Equal(found, []string{"write without success in place of in vain"}) {
		t.Errorf("found %q", found)
	}
}
