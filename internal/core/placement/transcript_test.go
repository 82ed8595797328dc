package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts runs the transcripts in testdata. Commands:
//
//	node NAME                                     use the machine of testdata/topologies/NAME.txt
//	matrix                                        use the machine written below the command
//	describe                                      print Describe
//	choose size=N [available=(…)] [must=(…)]      print the set, its score and what remains
//	serve sizes=(…) [available=(…)]               choose one after another from what remains
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var node *Node
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "node":
				node = loadMachine(t, d.CmdArgs[0].Key).node(t)
				return fmt.Sprintf("%d GPUs\n", node.count)
			case "matrix":
				m, err := parseMachine(d.Input)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				made, err := NewNode(m.topology, m.numa)
				if err != nil {
					return err.Error() + "\n"
				}
				node = made
				return fmt.Sprintf("%d GPUs\n", node.count)
			case "describe":
				return node.Describe()
			case "choose":
				var size int
				d.ScanArgs(t, "size", &size)
				return transcribe(node, argSet(t, d, "available", node.All()), argSet(t, d, "must", 0), size)
			case "serve":
				var text strings.Builder
				left := argSet(t, d, "available", node.All())
				for _, size := range argInts(t, d, "sizes") {
					text.WriteString(transcribe(node, left, 0, size))
					s, err := node.Choose(left, 0, size)
					if err == nil {
						left &^= s
					}
				}
				return text.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func transcribe(node *Node, available, must Set, size int) string {
	s, err := node.Choose(available, must, size)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	return fmt.Sprintf("%v  %v; leaves %v\n", s, node.Score(s), node.Packing(available&^s))
}

func argSet(t *testing.T, d *datadriven.TestData, name string, otherwise Set) Set {
	t.Helper()
	if !d.HasArg(name) {
		return otherwise
	}
	return SetOf(argInts(t, d, name)...)
}

func argInts(t *testing.T, d *datadriven.TestData, name string) []int {
	t.Helper()
	var values []int
	for _, arg := range d.CmdArgs {
		if arg.Key != name {
			continue
		}
		for i := range arg.Vals {
			var value int
			arg.Scan(t, i, &value)
			values = append(values, value)
		}
	}
	return values
}
