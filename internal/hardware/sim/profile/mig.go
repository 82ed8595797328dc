package profile

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// GIProfile is a size of GPU instance: a row of nvidia-smi mig -lgip.
type GIProfile struct {
	// Name is the name that NVIDIA's tools print after "MIG ", such as "1g.10gb+me".
	Name string `json:"name"`
	// Enum is NVML_GPU_INSTANCE_PROFILE_*; ID is the unique number that instances refer to.
	Enum int    `json:"enum"`
	ID   uint32 `json:"id"`
	// ComputeSlices and MemorySlices are what an instance occupies of the GPU.
	ComputeSlices int    `json:"computeSlices"`
	MemorySlices  int    `json:"memorySlices"`
	MemoryMiB     uint64 `json:"memoryMiB"`
	SMs           uint32 `json:"sms"`
	Max           int    `json:"max"`
	// Starts are the possible placements; each occupies Size memory slices.
	Starts  []int  `json:"starts"`
	Size    int    `json:"size"`
	Copy    uint32 `json:"copy"`
	Decoder uint32 `json:"decoder"`
	JPEG    uint32 `json:"jpeg"`
	OFA     uint32 `json:"ofa"`
}

// Media counts the media engines of an instance or of a GPU. Instances do not share them.
type Media struct {
	Decoder uint32
	JPEG    uint32
	OFA     uint32
}

// Media returns the media engines of an instance.
func (p *GIProfile) Media() Media { return Media{Decoder: p.Decoder, JPEG: p.JPEG, OFA: p.OFA} }

// Add returns the sum.
func (m Media) Add(other Media) Media {
	return Media{Decoder: m.Decoder + other.Decoder, JPEG: m.JPEG + other.JPEG, OFA: m.OFA + other.OFA}
}

// Within reports whether m has at most as many engines of each kind as all.
func (m Media) Within(all Media) bool {
	return m.Decoder <= all.Decoder && m.JPEG <= all.JPEG && m.OFA <= all.OFA
}

// Geometry describes how a model can be partitioned.
type Geometry struct {
	Profiles []GIProfile `json:"profiles"`
	// ComputeSlices and MemorySlices are those of the whole GPU.
	ComputeSlices int `json:"computeSlices"`
	MemorySlices  int `json:"memorySlices"`
}

// Media returns the media engines of the whole GPU: the maximum of each kind over the profiles.
func (g *Geometry) Media() Media {
	var all Media
	for i := range g.Profiles {
		one := g.Profiles[i].Media()
		all = Media{Decoder: max(all.Decoder, one.Decoder), JPEG: max(all.JPEG, one.JPEG), OFA: max(all.OFA, one.OFA)}
	}
	return all
}

// LoadGeometry reads the table of one model (Model.MIG).
func LoadGeometry(name string) (*Geometry, error) {
	content, err := files.ReadFile("data/mig.csv")
	if err != nil {
		return nil, fmt.Errorf("read MIG geometry: %w", err)
	}
	reader := csv.NewReader(strings.NewReader(string(content)))
	reader.Comment = '#'
	rows, err := reader.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("parse MIG geometry: %w", err)
	}
	geometry := &Geometry{}
	for _, row := range rows[1:] {
		if row[0] != name {
			continue
		}
		entry, err := parseGIProfile(row)
		if err != nil {
			return nil, fmt.Errorf("parse MIG geometry %s: %w", name, err)
		}
		geometry.Profiles = append(geometry.Profiles, entry)
		geometry.ComputeSlices = max(geometry.ComputeSlices, entry.ComputeSlices)
		geometry.MemorySlices = max(geometry.MemorySlices, entry.MemorySlices)
	}
	if len(geometry.Profiles) == 0 {
		return nil, fmt.Errorf("find MIG geometry: no geometry is named %q", name)
	}
	slices.SortFunc(geometry.Profiles, func(a, b GIProfile) int { return a.Enum - b.Enum })
	return geometry, nil
}

func parseGIProfile(row []string) (GIProfile, error) {
	var firstErr error
	number := func(column int) int {
		n, err := strconv.Atoi(row[column])
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("column %d: %w", column+1, err)
		}
		return n
	}
	entry := GIProfile{
		Name: row[1], Enum: number(2), ID: uint32(number(3)),
		ComputeSlices: number(4), MemorySlices: number(5), MemoryMiB: uint64(number(6)), SMs: uint32(number(7)),
		Max: number(8), Size: number(10),
		Copy: uint32(number(11)), Decoder: uint32(number(12)), JPEG: uint32(number(13)), OFA: uint32(number(14)),
	}
	for start := range strings.SplitSeq(row[9], ";") {
		n, err := strconv.Atoi(start)
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("starts: %w", err)
		}
		entry.Starts = append(entry.Starts, n)
	}
	return entry, firstErr
}
