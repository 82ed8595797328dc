package placement

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// machine is a topology file: "numa" with a node per GPU, then the matrix. A cell is X, a path (SYS), NVLinks with the
// path beside them (NV2/PHB), or the same through NVSwitches (NV12s/SYS).
type machine struct {
	name     string
	topology gpu.Topology
	numa     []int
}

func (m machine) node(t testing.TB) *Node {
	t.Helper()
	return mustNode(t, m.topology, m.numa)
}

func mustNode(t testing.TB, topology gpu.Topology, numa []int) *Node {
	t.Helper()
	node, err := NewNode(topology, numa)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func loadMachine(t testing.TB, name string) machine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "topologies", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := parseMachine(string(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	m.name = name
	return m
}

func allMachines(t testing.TB) []machine {
	t.Helper()
	files, err := filepath.Glob("testdata/topologies/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no topologies: %v", err)
	}
	var machines []machine
	for _, file := range files {
		machines = append(machines, loadMachine(t, strings.TrimSuffix(filepath.Base(file), ".txt")))
	}
	return machines
}

func parseMachine(text string) (machine, error) {
	var m machine
	var rows [][]string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] == "#":
		case fields[0] == "numa":
			for _, field := range fields[1:] {
				node, err := strconv.Atoi(field)
				if err != nil {
					return m, err
				}
				m.numa = append(m.numa, node)
			}
		default:
			rows = append(rows, fields)
		}
	}
	m.topology = gpu.NewTopology(len(rows))
	for i, row := range rows {
		if len(row) != len(rows) {
			return m, fmt.Errorf("row %d has %d cells, want %d", i, len(row), len(rows))
		}
		for j, cell := range row {
			link, err := parseLink(cell)
			if err != nil {
				return m, err
			}
			m.topology[i][j] = link
		}
	}
	return m, nil
}

func parseLink(cell string) (gpu.Link, error) {
	var link gpu.Link
	if cell == "X" {
		return link, nil
	}
	nvlinks, path, found := strings.Cut(cell, "/")
	if found {
		count, switched := strings.CutSuffix(strings.TrimPrefix(nvlinks, "NV"), "s")
		n, err := strconv.Atoi(count)
		if err != nil {
			return link, err
		}
		link.Kind, link.Count, link.Switched = gpu.LinkNVLink, n, switched
	} else {
		path = cell
	}
	for p := gpu.PathUnknown; p <= gpu.PathSystem; p++ {
		if p.Letters() == path {
			link.Path = p
			return link, nil
		}
	}
	return link, fmt.Errorf("no such link: %q", cell)
}

// switchFabric is n GPUs connected through NVSwitches, four to a socket and otherwise alike.
func switchFabric(n, nvlinks int) (gpu.Topology, []int) {
	topology := gpu.NewTopology(n)
	numa := make([]int, n)
	for i := range n {
		numa[i] = i / 4
		for j := range i {
			topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: nvlinks, Switched: true, Path: gpu.PathSystem})
		}
	}
	return topology, numa
}

// allNVLinked reports whether NVLinks connect all pairs of a set, from the matrix alone.
func allNVLinked(topology gpu.Topology, s Set) bool {
	for i := range s.Positions() {
		for j := range s.Positions() {
			if i != j && topology[i][j].Count == 0 {
				return false
			}
		}
	}
	return true
}
