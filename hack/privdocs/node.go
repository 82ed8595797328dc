package main

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// pair returns the key and the value of a field; nil if there is none.
func pair(object *yaml.Node, name string) (key, value *yaml.Node) {
	if object == nil || object.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i], object.Content[i+1]
		}
	}
	return nil, nil
}

// at returns the value below a path of fields; nil if there is none.
func at(object *yaml.Node, path ...string) *yaml.Node {
	for _, name := range path {
		_, object = pair(object, name)
	}
	return object
}

// text returns the scalar below a path of fields; empty if there is none.
func text(object *yaml.Node, path ...string) string {
	if value := at(object, path...); value != nil {
		return value.Value
	}
	return ""
}

// items returns the elements of a list; none if there is no list.
func items(object *yaml.Node, name string) []*yaml.Node {
	if list := at(object, name); list != nil {
		return list.Content
	}
	return nil
}

// words returns the scalars of a list.
func words(list *yaml.Node) []string {
	if list == nil {
		return nil
	}
	all := []string{}
	for _, item := range list.Content {
		all = append(all, item.Value)
	}
	return all
}

// code returns words as code, separated by commas.
func code(words ...string) string { return "`" + strings.Join(words, "`, `") + "`" }

// sentence joins the lines of comments.
func sentence(comments ...string) string {
	var all []string
	for _, comment := range comments {
		for line := range strings.Lines(comment) {
			if line = strings.TrimSpace(strings.TrimLeft(line, "# \t")); line != "" {
				all = append(all, line)
			}
		}
	}
	return strings.ReplaceAll(strings.Join(all, " "), "|", `\|`)
}
