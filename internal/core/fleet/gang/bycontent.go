package gang

import (
	"encoding/binary"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// maxByContent bounds the tables that are kept by content: 4,096 of up to some hundred entries of 100 bytes.
const maxByContent = 4096

// nodeKeys name what nodes have: nodes of equal keys have the same answers.
type nodeKeys struct{ links map[any]int }

// byContent has the tables of nodes by their content and the classes.
type byContent struct {
	nodeKeys
	tables  map[string]table
	scratch []byte
}

func newByContent() byContent {
	return byContent{nodeKeys: nodeKeys{map[any]int{}}, tables: map[string]table{}}
}

// of returns the table of a node for classes that a text names. It is computed where there is none of such a node.
func (a *byContent) of(classes string, n *fleet.Node, compute func() table) table {
	b := a.append(append(a.scratch[:0], classes...), n)
	a.scratch = b
	if t, known := a.tables[string(b)]; known {
		return t
	}
	key := string(b)
	t := compute()
	if len(a.tables) >= maxByContent {
		clear(a.tables)
		clear(a.links)
	}
	a.tables[key] = t
	return t
}

// append appends the content of a node but for its name.
func (c *nodeKeys) append(b []byte, n *fleet.Node) []byte {
	b = append(b, n.Model...)
	link, known := c.links[n.Links]
	if !known {
		link = len(c.links)
		c.links[n.Links] = link
	}
	number := func(x int64) { b = binary.AppendVarint(b, x) }
	for _, x := range []int64{int64(len(n.Model)), int64(link), n.CPU, n.FreeCPU, n.Memory, n.FreeMemory, int64(len(n.GPUs))} {
		number(x)
	}
	if n.Spread {
		b = append(b, 1)
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		b = append(b, g.Resource...)
		flag := byte(0)
		if g.Single {
			flag = 1
		}
		b = append(b, byte(g.State), g.Physical, g.Switch, flag)
		number(int64(len(g.Resource)))
		number(int64(g.Free))
		number(int64(g.Unit))
		number(int64(g.Size))
		number(int64(g.Bandwidth))
		number(int64(g.HostBandwidth))
	}
	return b
}
