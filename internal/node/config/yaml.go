package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// plain returns a node's value in the types of encoding/json.
func plain(node *yaml.Node) (any, error) {
	switch node.Kind {
	case yaml.SequenceNode:
		list := make([]any, len(node.Content))
		for i, item := range node.Content {
			var err error
			if list[i], err = plain(item); err != nil {
				return nil, err
			}
			if list[i] == nil {
				return nil, errors.New("an entry of this list is empty")
			}
		}
		return list, nil
	case yaml.MappingNode:
		// No type that decodes itself accepts this; its own error says what it expects.
		return map[string]any{}, nil
	}
	switch tag := node.ShortTag(); tag {
	case "!!null":
		return nil, nil
	case "!!str", "!!timestamp":
		if !printable(node.Value) {
			return nil, fmt.Errorf("%q holds a character that cannot be printed", node.Value)
		}
		return node.Value, nil // A date is read as the text that was written.
	case "!!bool", "!!int", "!!float":
		var value any
		if err := node.Decode(&value); err != nil {
			return nil, fmt.Errorf("cannot be read: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		if number, ok := value.(float64); ok && (math.IsNaN(number) || math.IsInf(number, 0)) {
			return node.Value, nil // JSON has no such number; as text it has the wrong type.
		}
		return value, nil
	default:
		return nil, fmt.Errorf("the tag %s is not read", tag)
	}
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) })
}

// maxShown is how many characters of a wrong value an error has: a file that is no configuration can be one long value.
const maxShown = 60

func describe(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	}
	if runes := []rune(node.Value); len(runes) > maxShown {
		return strconv.Quote(string(runes[:maxShown])) + "..."
	}
	return strconv.Quote(node.Value)
}

// hasKey reports whether a document has the key at the top level.
func hasKey(document *yaml.Node, key string) bool {
	if document == nil || document.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i+1 < len(document.Content); i += 2 {
		if document.Content[i].Value == key {
			return true
		}
	}
	return false
}

// yamlErrorText returns the error of the YAML library without its name and the line.
func yamlErrorText(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if _, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(text, "line ") {
		return rest
	}
	return text
}

// yamlErrorLine returns the line of "yaml: line 3: …"; the library has no field for it, and omits it for the first
// line.
func yamlErrorLine(err error) int {
	_, rest, ok := strings.Cut(err.Error(), "line ")
	if !ok {
		return 1
	}
	digits, _, _ := strings.Cut(rest, ":")
	line, _ := strconv.Atoi(digits)
	return line
}
