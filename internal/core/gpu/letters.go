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

// PathLetters returns the matrix of PCIe paths in the form of Letters, also between GPUs that NVLinks connect. It is nil where no NVLinks
// connect any GPUs: Letters are the same then.
func (t Topology) PathLetters() []string {
	if !t.HasNVLinks() {
		return nil
	}
	paths := NewTopology(len(t))
	for i, links := range t {
		for k, link := range links {
			paths[i][k] = Link{Path: link.Path}
		}
	}
	return paths.Letters()
}

// HasNVLinks reports whether NVLinks connect any two GPUs.
func (t Topology) HasNVLinks() bool {
	for _, links := range t {
		for _, link := range links {
			if link.Kind == LinkNVLink && link.Count > 0 {
				return true
			}
		}
	}
	return false
}

// ParseTopologies is the inverse of Topology.Letters and Topology.PathLetters together. gpus is the number of GPUs that the rows are to
// be of. Without pathRows the result is that of ParseTopology: where NVLinks connect GPUs, the path between them is unknown then.
//
// All that placement decides by is in the result. Only Link.Switched is not, and the kind of a link without a number.
//
// It returns an error where ParseTopology does, for a number of rows that is neither 0 nor gpus, for as many pathRows as there are not
// rows, and for a row of paths that ParseTopology would refuse, that has NVLinks, or that has another path than rows have for two GPUs
// that no NVLinks connect. Each error names the matrix, the row and the link.
func ParseTopologies(gpus int, rows, pathRows []string) (Topology, error) {
	if len(rows) != gpus && len(rows) > 0 {
		return nil, fmt.Errorf("parse topology: it has %d rows for %d GPUs, want one for each", len(rows), gpus)
	}
	topology, err := ParseTopology(rows)
	if err != nil || len(pathRows) == 0 {
		return topology, err
	}
	if len(pathRows) != len(rows) {
		return nil, fmt.Errorf("parse PCIe topology: it has %d rows, but the topology has %d, want the same number", len(pathRows), len(rows))
	}
	paths := NewTopology(len(pathRows))
	for i, row := range pathRows {
		err := paths.parseRow(i, row)
		if err == nil {
			err = topology.addPaths(i, paths[i])
		}
		if err != nil {
			return nil, fmt.Errorf("parse PCIe topology: row %d: %w", i, err)
		}
	}
	return topology, nil
}

// addPaths sets the paths of a GPU's NVLinks, and compares those of its other links.
func (t Topology) addPaths(i int, paths []Link) error {
	for j, path := range paths {
		link := &t[i][j]
		switch {
		case path.Kind != "":
			return fmt.Errorf("link %d is %s, want the letters of a PCIe path", j, path.Letters())
		case link.Kind == LinkNVLink:
			link.Path = path.Path
		case i != j && link.Path != path.Path:
			return fmt.Errorf("link %d is %s, but the topology has %s for the same link, want the same in both", j, path.Letters(), link.Letters())
		}
	}
	return nil
}

// ParseTopology is the inverse of Topology.Letters: it returns the links of a node's GPUs in the order of the rows. Links may be
// separated by several spaces. Without rows, which is how a GPUNode says that the links are not known, the matrix is empty.
//
// Letters do not say what Link.Path is between GPUs that NVLinks connect, nor whether these go through switches: such a Link has the
// number of NVLinks only, and Path is PathUnknown. ParseTopologies reads the paths too.
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
