package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// Self is the letter of a GPU's link to itself.
	Self = "X"
	// MaxNVLinks is the largest number of NVLinks between two GPUs that ParseTopology accepts; current hardware has up to 18.
	MaxNVLinks = 255
	// MaxParsedGPUs is the largest number of GPUs that ParseTopology accepts.
	MaxParsedGPUs = 128

	// maxCellBytes bounds a row: its links on average, with the spaces between them. The longest link has 5 bytes.
	maxCellBytes = 16
)

// Letters returns what nvidia-smi topo -m prints for the matrix: a row per GPU, its links separated by single spaces, X on the
// diagonal. It is nil for a matrix without rows.
func (t Topology) Letters() []string {
	var rows []string
	for i, links := range t {
		cells := make([]string, len(links))
		for k, link := range links {
			cells[k] = link.Letters()
			if i == k {
				cells[k] = Self
			}
		}
		rows = append(rows, strings.Join(cells, " "))
	}
	return rows
}

// ParseTopology is the inverse of Topology.Letters: it returns the links of a node's GPUs in the order of the rows. Links may be
// separated by several spaces. Without rows, which is how a GPUNode says that the links are not known, the matrix is empty.
//
// Letters do not say what Link.Path is between GPUs that NVLinks connect, nor whether these go through switches: such a Link has the
// number of NVLinks only, and Path is PathUnknown.
//
// It returns an error for more than MaxParsedGPUs rows, a row that has not one link per row, letters that do not exist, more than
// MaxNVLinks NVLinks, an X that is not on the diagonal or is missing there, and a link that differs between its two directions.
func ParseTopology(rows []string) (Topology, error) {
	if len(rows) > MaxParsedGPUs {
		return nil, fmt.Errorf("parse topology: it has %d rows, want one for each of at most %d GPUs", len(rows), MaxParsedGPUs)
	}
	topology := NewTopology(len(rows))
	for i, row := range rows {
		if err := topology.parseRow(i, row); err != nil {
			return nil, fmt.Errorf("parse topology: row %d: %w", i, err)
		}
	}
	return topology, nil
}

// parseRow sets the links of a GPU and compares them with those of the rows before it.
func (t Topology) parseRow(i int, row string) error {
	if limit := maxCellBytes * len(t); len(row) > limit {
		return fmt.Errorf("it is %d bytes long, want at most %d for %d links", len(row), limit, len(t))
	}
	cells := strings.Fields(row)
	if len(cells) != len(t) {
		return fmt.Errorf("it has %d links, want %d, one for each row", len(cells), len(t))
	}
	for j, cell := range cells {
		if onDiagonal := i == j; onDiagonal || cell == Self {
			if !onDiagonal || cell != Self {
				return fmt.Errorf("link %d is %q, want %s at position %d and nowhere else", j, cell, Self, i)
			}
			continue
		}
		link, err := parseLink(cell)
		if err != nil {
			return fmt.Errorf("link %d: %w", j, err)
		}
		t[i][j] = link
		if back := t[j][i]; j < i && back != link {
			return fmt.Errorf("the link to GPU %d is %s, but row %d has %s for the same link, want the same in both", j, cell, j, back.Letters())
		}
	}
	return nil
}

// parseLink is the inverse of Link.Letters.
func parseLink(letters string) (Link, error) {
	for path := PathUnknown; path <= PathSystem; path++ {
		if path.Letters() == letters {
			return Link{Path: path}, nil
		}
	}
	digits, nvlinks := strings.CutPrefix(letters, "NV")
	if !nvlinks {
		return Link{}, fmt.Errorf("unknown letters %q, want NV#, PSB, PIX, PXB, PHB, NODE, SYS or ?", letters)
	}
	count, err := strconv.Atoi(digits)
	if err != nil || count < 1 || count > MaxNVLinks || strconv.Itoa(count) != digits {
		return Link{}, fmt.Errorf("%q is no number of NVLinks, want NV1 to NV%d", letters, MaxNVLinks)
	}
	return Link{Kind: LinkNVLink, Count: count}, nil
}
