package config

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds a document after its aliases are expanded: a few lines of nested aliases could otherwise use all
// memory.
const maxNodes = 100_000

// mergeKey merges the keys of another mapping.
const mergeKey = "<<"

// expand replaces aliases and merge keys by their values, so that later steps see none. It returns nil when that is
// refused.
func (d *decoder) expand(document *yaml.Node) *yaml.Node {
	e := &expansion{decoder: d}
	written := e.node(document)
	if e.failed {
		return nil
	}
	return written
}

// expansion is one call of expand.
type expansion struct {
	*decoder
	// within are the anchors that are being expanded.
	within []*yaml.Node
	nodes  int
	failed bool
}

func (e *expansion) refuse(line int, what, fix string) *yaml.Node {
	if !e.failed {
		e.add(line, "", what, fix)
	}
	e.failed = true
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: line}
}

// node copies a node with the values that it refers to.
func (e *expansion) node(from *yaml.Node) *yaml.Node {
	if e.nodes++; e.nodes > maxNodes || e.failed {
		return e.refuse(from.Line, fmt.Sprintf("the file has more than %d values after its aliases are expanded",
			maxNodes), "use fewer aliases")
	}
	if from.Kind == yaml.AliasNode {
		if slices.Contains(e.within, from.Alias) {
			return e.refuse(from.Line, "the anchor "+from.Value+" contains itself", "write the value without an anchor")
		}
		e.within = append(e.within, from.Alias)
		defer func() { e.within = e.within[:len(e.within)-1] }()
		written := e.node(from.Alias)
		written.Line = from.Line
		return written
	}
	to := *from
	to.Anchor, to.Content = "", nil
	if from.Kind == yaml.MappingNode {
		e.mapping(from, &to)
		return &to
	}
	for _, child := range from.Content {
		to.Content = append(to.Content, e.node(child))
	}
	return &to
}

// mapping copies keys and values; merged keys come last, and only if the mapping does not have them.
func (e *expansion) mapping(from, to *yaml.Node) {
	var merged []*yaml.Node
	for i := 0; i+1 < len(from.Content); i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		if key.Kind == yaml.ScalarNode && key.Value == mergeKey && key.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		to.Content = append(to.Content, e.node(key), e.node(value))
	}
	given := map[string]bool{}
	for i := 0; i < len(to.Content); i += 2 {
		given[to.Content[i].Value] = true
	}
	for _, value := range merged {
		e.merge(e.node(value), to, given)
	}
}

// merge adds the keys of one mapping, or of a list of mappings, of which the first takes precedence.
func (e *expansion) merge(source, to *yaml.Node, given map[string]bool) {
	switch source.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(source.Content); i += 2 {
			if key := source.Content[i]; !given[key.Value] {
				given[key.Value] = true
				to.Content = append(to.Content, key, source.Content[i+1])
			}
		}
	case yaml.SequenceNode:
		for _, one := range source.Content {
			if one.Kind != yaml.MappingNode {
				e.refuse(one.Line, "<< needs keys and values, or a list of those, got "+describe(one), "")
				return
			}
			e.merge(one, to, given)
		}
	default:
		e.refuse(source.Line, "<< needs keys and values, or a list of those, got "+describe(source), "")
	}
}
