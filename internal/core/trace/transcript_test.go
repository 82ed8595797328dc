package trace

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/cockroachdb/datadriven"
)

// TestTranscripts runs the transcripts in testdata: their input is lines of evidence, their output the picture. The
// commands are
//
//	evidence       replaces the evidence by the lines below it
//	trace pod=NS/NAME|uid=UID|gpu=UUID|claim=NS/NAME|pid=N [without=(KIND,...)] [line...]
//
// where the further lines of a trace are added to the evidence for this trace only, after the facts of the kinds in
// without were removed.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var base Evidence
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "evidence":
				base = parseEvidence(t, d.Input)
				return ""
			case "trace":
				return runTrace(t, d, base)
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

func runTrace(t *testing.T, d *datadriven.TestData, base Evidence) string {
	var query Query
	evidence := base
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "pod":
			query.Pod = parseRef(arg.Vals[0])
		case "uid":
			query.Pod = Ref{UID: arg.Vals[0]}
		case "claim":
			query.Claim = ClaimRef(parseRef(arg.Vals[0]))
		case "gpu":
			query.Device = gpu.UUID(arg.Vals[0])
		case "pid":
			query.PID = number(t, arg.Vals[0])
		case "without":
			for _, kind := range arg.Vals {
				evidence = without(evidence, kindNames()[kind])
			}
		default:
			t.Fatalf("%s: unknown argument %q", d.Pos, arg.Key)
		}
	}
	evidence = merge(evidence, parseEvidence(t, d.Input))
	selected, err := Join(testVendors(), evidence).Select(query)
	var missing *NotFoundError
	switch {
	case errors.As(err, &missing):
		return fmt.Sprintf("error: %v (nearest: %s)\n", err, strings.Join(missing.Nearest, ", "))
	case err != nil:
		t.Fatal(err)
	}
	return selected.Describe()
}

func kindNames() map[string]Kind {
	return map[string]Kind{
		"spec": PodSpec, "status": PodStatus, "claim": ResourceClaim, "record": ClaimRecord, "dir": Directory, "checkpoint": Checkpoint, "answer": AllocResp,
		"podresources": PodResources, "ledger": Ledger, "gpunode": GPUNode, "cdi": CDISpec, "oci": OCISpec, "proc": Process, "nvml": Hardware,
	}
}

// without removes every fact of a kind.
func without(e Evidence, kind Kind) Evidence {
	return Evidence{
		Read:        keep(e.Read, func(s Source) bool { return s.Kind != kind }),
		Partial:     keep(e.Partial, func(p Partial) bool { return p.Source.Kind != kind }),
		Withheld:    keep(e.Withheld, func(s Source) bool { return s.Kind != kind }),
		Unread:      e.Unread,
		Pods:        keep(e.Pods, func(f PodFact) bool { return f.Source.Kind != kind }),
		Waits:       keep(e.Waits, func(f WaitFact) bool { return f.Source.Kind != kind }),
		Assignments: keep(e.Assignments, func(f AssignmentFact) bool { return f.Source.Kind != kind }),
		Answers:     keep(e.Answers, func(f AnswerFact) bool { return f.Source.Kind != kind }),
		Claims:      keep(e.Claims, func(f ClaimFact) bool { return f.Source.Kind != kind }),
		Uses:        keep(e.Uses, func(f UseFact) bool { return f.Source.Kind != kind }),
		Containers:  keep(e.Containers, func(f ContainerFact) bool { return f.Source.Kind != kind }),
		Processes:   keep(e.Processes, func(f ProcessFact) bool { return f.Source.Kind != kind }),
		CDI:         keep(e.CDI, func(f CDIFact) bool { return f.Source.Kind != kind }),
		Devices:     keep(e.Devices, func(f DeviceFact) bool { return f.Source.Kind != kind }),
	}
}

func keep[T any](list []T, want func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(item T) bool { return !want(item) })
}

func merge(a, b Evidence) Evidence {
	return Evidence{
		Read: slices.Concat(a.Read, b.Read), Partial: slices.Concat(a.Partial, b.Partial), Withheld: slices.Concat(a.Withheld, b.Withheld), Unread: slices.Concat(a.Unread, b.Unread), Pods: slices.Concat(a.Pods, b.Pods),
		Assignments: slices.Concat(a.Assignments, b.Assignments), Answers: slices.Concat(a.Answers, b.Answers),
		Claims: slices.Concat(a.Claims, b.Claims), Uses: slices.Concat(a.Uses, b.Uses),
		Containers: slices.Concat(a.Containers, b.Containers), Processes: slices.Concat(a.Processes, b.Processes),
		CDI: slices.Concat(a.CDI, b.CDI), Devices: slices.Concat(a.Devices, b.Devices),
	}
}

// parseEvidence parses one fact per line: KIND key=value ...
func parseEvidence(t *testing.T, text string) Evidence {
	var e Evidence
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		args := map[string]string{}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			args[key] = value
		}
		addLine(t, &e, words[0], args)
	}
	return e
}

func addLine(t *testing.T, e *Evidence, word string, args map[string]string) {
	source := Source{Kind: kindNames()[word], Path: args["path"]}
	ref := parseRef(args["pod"])
	ref.UID = args["uid"]
	switch word {
	case "read":
		for kind := range strings.SplitSeq(args["kinds"], ",") {
			read := Source{Kind: kindNames()[kind], Path: args["path"]}
			e.Read = append(e.Read, read)
			if args["vendor"] != "" {
				e.Partial = append(e.Partial, Partial{read, args["vendor"]})
			}
			if args["withheld"] != "" {
				e.Withheld = append(e.Withheld, read)
			}
		}
	case "unread":
		e.Unread = append(e.Unread, Unread{Source: Source{Kind: kindNames()[args["kind"]]}, Why: strings.ReplaceAll(args["why"], "_", " ")})
	case "spec", "dir":
		e.Pods = append(e.Pods, PodFact{Source: source, Ref: ref, Node: args["node"], Phase: args["phase"],
			Containers: parseContainers(t, args["containers"])})
	case "checkpoint", "podresources", "status", "gpunode", "ledger":
		if args["container"] != "" {
			e.Assignments = append(e.Assignments, AssignmentFact{source, ref, args["container"],
				orGPU(args["resource"]), list(args["ids"])})
		}
		if args["container"] != "" && word == "podresources" {
			e.Pods = append(e.Pods, PodFact{Source: source, Ref: ref, Containers: []PodContainer{{Name: args["container"]}}})
		}
	case "answer":
		e.Answers = append(e.Answers, AnswerFact{
			Source: source, Pod: ref, Container: args["container"], Resource: orGPU(args["resource"]), Env: parseEnv(args["env"]),
			Nodes: parseNodes(t, args["nodes"]), CDINames: list(args["cdi"]), Mounts: parseMounts(args["mounts"]),
			Annotations: parseEnv(args["annotations"]),
		})
	case "claims":
		e.Claims = append(e.Claims, parseClaim(args))
	case "use":
		e.Uses = append(e.Uses, UseFact{
			Source: Source{Kind: PodSpec}, Pod: ref, Container: args["container"], Claim: ClaimRef(parseRef(args["claim"])),
			Requests: list(args["requests"]), Resource: args["resource"],
		})
	case "oci", "proc":
		fact := ContainerFact{
			Source: source, ID: args["id"], Pod: ref, Container: args["container"], Privileged: args["privileged"] == "true",
			Env: parseEnv(args["env"]), Nodes: parseNodes(t, args["nodes"]), NoNodes: args["nodes"] == "unseen",
			Mounts: testVendors().RelevantMounts(parseMounts(args["mounts"])),
		}
		for _, pid := range list(args["pids"]) {
			fact.PIDs = append(fact.PIDs, number(t, pid))
			e.Processes = append(e.Processes, ProcessFact{Source{Kind: Process}, number(t, pid), args["id"], args["uid"]})
		}
		e.Containers = append(e.Containers, fact)
	case "cdi":
		e.CDI = append(e.CDI, CDIFact{Source: source, Name: args["name"], Nodes: parseNodes(t, args["nodes"])})
	case "nvml", "device":
		if word == "device" {
			source.Kind = GPUNode
		}
		e.Devices = append(e.Devices, DeviceFact{
			Source: source, UUID: gpu.UUID(args["uuid"]), PoolName: args["pool"], Vendor: args["vendor"], Parent: gpu.UUID(args["parent"]), Index: args["index"],
			Minor: number(t, args["minor"]),
			PCI:   args["pci"], Product: args["product"], NUMANode: number(t, args["numa"]), Nodes: parseNodes(t, args["nodes"]),
			Profile: args["profile"], Instance: parseInstance(t, args["instance"]), Sharing: parseSharing(t, args["sharing"]),
		})
	default:
		t.Fatalf("unknown evidence %q", word)
	}
}

// parseClaim parses a claim of the source in=KIND: devices=ID:REQUEST[:CDI name][:admin], separated by commas, and pods=NS/NAME or UID.
func parseClaim(args map[string]string) ClaimFact {
	fact := ClaimFact{Source: Source{Kind: kindNames()[args["in"]], Path: args["path"]}, Claim: ClaimRef(parseRef(args["claim"]))}
	fact.Claim.UID = args["uid"]
	for _, item := range list(args["devices"]) {
		parts := append(strings.Split(item, ":"), "", "", "")
		device := ClaimDevice{ID: parts[0], Admin: parts[3] == "admin"}
		if parts[1] != "" {
			device.Requests = strings.Split(parts[1], "+")
		}
		if parts[2] != "" {
			device.CDINames = []string{parts[2]}
		}
		fact.Devices = append(fact.Devices, device)
	}
	for _, pod := range list(args["pods"]) {
		if strings.Contains(pod, "/") {
			fact.Pods = append(fact.Pods, parseRef(pod))
		} else {
			fact.Pods = append(fact.Pods, Ref{UID: pod})
		}
	}
	return fact
}

// parseInstance parses GI:CI:start:size.
func parseInstance(t *testing.T, text string) InstanceFact {
	if text == "" {
		return InstanceFact{}
	}
	parts := strings.Split(text, ":")
	return InstanceFact{GI: number(t, parts[0]), CI: number(t, parts[1]), Start: number(t, parts[2]), Size: number(t, parts[3])}
}

// parseSharing parses mode:replicas[:MiB[:percent[:time slice[:why it drains[:singleUser]]]]].
func parseSharing(t *testing.T, text string) SharingFact {
	if text == "" {
		return SharingFact{}
	}
	parts := append(strings.Split(text, ":"), "", "", "", "", "", "")
	return SharingFact{
		Mode:      parts[0],
		Replicas:  number(t, parts[1]),
		TimeSlice: parts[4],
		MPS: gpu.MPSLimits{
			PinnedMemoryMiB:        int64(number(t, parts[2])),
			ActiveThreadPercentage: number(t, parts[3]),
			SingleUser:             parts[6] == "singleUser",
		},
		Draining: strings.ReplaceAll(parts[5], "_", " "),
	}
}

func orGPU(resource string) string {
	if resource == "" {
		return "nvidia.com/gpu"
	}
	return resource
}

func parseRef(text string) Ref {
	namespace, name, _ := strings.Cut(text, "/")
	return Ref{Namespace: namespace, Name: name}
}

// parseContainers parses name:role:state:resource:count, separated by commas.
func parseContainers(t *testing.T, text string) []PodContainer {
	var out []PodContainer
	for _, item := range list(text) {
		parts := append(strings.Split(item, ":"), "", "", "", "")
		container := PodContainer{Name: parts[0], Role: Role(parts[1]), State: parts[2]}
		if parts[3] != "" {
			container.Asked = []Ask{{parts[3], int64(number(t, parts[4]))}}
		}
		out = append(out, container)
	}
	return out
}

// parseNodes parses path@major:minor or path, separated by commas.
func parseNodes(t *testing.T, text string) []Node {
	var out []Node
	for _, item := range list(text) {
		path, numbers, ok := strings.Cut(item, "@")
		if !strings.HasPrefix(path, "/") {
			continue
		}
		node := Node{path, Unknown, Unknown}
		if ok {
			major, minor, _ := strings.Cut(numbers, ":")
			node.Major, node.Minor = int64(number(t, major)), int64(number(t, minor))
		}
		out = append(out, node)
	}
	return out
}

// parseEnv parses NAME:value;NAME:value.
func parseEnv(text string) []EnvVar {
	var out []EnvVar
	for item := range strings.SplitSeq(text, ";") {
		if name, value, ok := strings.Cut(item, ":"); ok {
			out = append(out, EnvVar{name, value})
		}
	}
	return out
}

func parseMounts(text string) []Mount {
	var out []Mount
	for _, item := range list(text) {
		host, path, _ := strings.Cut(item, ":")
		out = append(out, Mount{host, path})
	}
	return out
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func number(t *testing.T, text string) int {
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
