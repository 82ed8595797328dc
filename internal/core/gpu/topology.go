package gpu

import (
	"slices"
	"strconv"
)

// PCIPath is the distance of two GPUs on PCIe, nearest first (nvmlGpuTopologyLevel).
type PCIPath int

// The levels of nvmlDeviceGetTopologyCommonAncestor, with nvidia-smi's letters.
const (
	PathUnknown      PCIPath = iota
	PathSameBoard            // one board with two GPUs
	PathSingleSwitch         // PIX
	PathMultiSwitch          // PXB
	PathHostBridge           // PHB
	PathSameNUMA             // NODE
	PathSystem               // SYS: across the sockets
)

// Letters returns what nvidia-smi topo -m prints for the path.
func (p PCIPath) Letters() string {
	switch p {
	case PathSameBoard:
		return "PSB"
	case PathSingleSwitch:
		return "PIX"
	case PathMultiSwitch:
		return "PXB"
	case PathHostBridge:
		return "PHB"
	case PathSameNUMA:
		return "NODE"
	case PathSystem:
		return "SYS"
	}
	return "?"
}

// LinkKind is the kind of a direct link between GPUs.
type LinkKind string

// The kinds of links; empty for GPUs that only PCIe joins.
const LinkNVLink LinkKind = "nvlink"

// Link is what joins two GPUs.
type Link struct {
	Kind LinkKind `json:"kind,omitempty"`
	// Count is the number of active links of that kind between the two; on a fabric of switches, the number of links that
	// each of them has into the fabric, since each pair can use all of them.
	Count int `json:"count,omitempty"`
	// Switched is true when the links go through switches.
	Switched bool    `json:"switched,omitempty"`
	Path     PCIPath `json:"path,omitempty"`
}

// Letters returns what nvidia-smi topo -m prints for the link: NV# or the PCIe path.
func (l Link) Letters() string {
	if l.Kind == LinkNVLink && l.Count > 0 {
		return "NV" + strconv.Itoa(l.Count)
	}
	return l.Path.Letters()
}

// Topology is the square, symmetric matrix of links between the GPUs of a node. The diagonal is zero.
type Topology [][]Link

// NewTopology returns a matrix of n by n empty links.
func NewTopology(n int) Topology {
	rows := make(Topology, n)
	cells := make([]Link, n*n)
	for i := range rows {
		rows[i], cells = cells[:n:n], cells[n:]
	}
	return rows
}

// Islands returns the groups of two or more GPUs that NVLinks connect, directly or through other GPUs of the group, as positions in
// GPUs: each group ascending, the groups by their first member. A GPU that does not respond is in no group. known is false while the
// snapshot has no topology.
func (s *Snapshot) Islands() (islands [][]int, known bool) {
	if len(s.Topology) != len(s.GPUs) {
		return nil, false
	}
	seen := make([]bool, len(s.GPUs))
	for i := range seen {
		seen[i] = s.GPUs[i].Health.State == Gone
	}
	for start := range s.GPUs {
		if seen[start] {
			continue
		}
		seen[start] = true
		group := []int{start}
		for at := 0; at < len(group); at++ {
			for next, link := range s.Topology[group[at]] {
				if link.Kind == LinkNVLink && link.Count > 0 && !seen[next] {
					seen[next] = true
					group = append(group, next)
				}
			}
		}
		if len(group) > 1 {
			slices.Sort(group)
			islands = append(islands, group)
		}
	}
	return islands, true
}

// Set writes a link in both directions.
func (t Topology) Set(i, j int, link Link) { t[i][j], t[j][i] = link, link }
