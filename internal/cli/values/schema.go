package values

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// schemaText is the schema of the chart, by which Helm checks the same values.
//
//go:embed values.schema.json
var schemaText string

// compiled is the schema, ready for use.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schemaText))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("values.schema.json", document); err != nil {
		return nil, err
	}
	return compiler.Compile("values.schema.json")
})

// violation is a value that the schema forbids.
type violation struct {
	key     string
	message string
}

// violations returns what the schema forbids in values, in the order of the keys. Helm checks the merged values, in which a key without
// a value is missing.
func violations(values map[string]any) ([]violation, error) {
	schema, err := compiled()
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	err = schema.Validate(withoutNull(values))
	var wrong *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &wrong):
		return nil, fmt.Errorf("check by the schema: %w", err)
	}
	found := leaves(wrong, message.NewPrinter(language.English))
	slices.SortFunc(found, func(a, b violation) int {
		return strings.Compare(a.key+"\x00"+a.message, b.key+"\x00"+b.message)
	})
	// A value that may have one of several forms has a violation for each.
	return slices.CompactFunc(found, func(a, b violation) bool { return a.key == b.key }), nil
}

// leaves returns the causes of an error that have no further causes.
func leaves(wrong *jsonschema.ValidationError, printer *message.Printer) []violation {
	var found []violation
	// Keys that the types of the values do not have were found before: these are in maps.
	if names, ok := wrong.ErrorKind.(*kind.AdditionalProperties); ok {
		for _, name := range names.Properties {
			found = append(found, violation{keyOf(append(slices.Clone(wrong.InstanceLocation), name)), "a key of this form is not allowed here"})
		}
		return found
	}
	if len(wrong.Causes) == 0 {
		return []violation{{keyOf(wrong.InstanceLocation), wrong.ErrorKind.LocalizedString(printer)}}
	}
	for _, cause := range wrong.Causes {
		found = append(found, leaves(cause, printer)...)
	}
	return found
}

// keyOf writes a path as the decoder does: agent.env[0].value, configs[default].gpus[0].
func keyOf(path []string) string {
	var key strings.Builder
	for i, part := range path {
		switch {
		case i > 0 && (strings.Trim(part, "0123456789") == "" || i == 1 && path[0] == "configs"):
			key.WriteString("[" + part + "]")
		case i > 0:
			key.WriteString("." + part)
		default:
			key.WriteString(part)
		}
	}
	return key.String()
}

// withoutNull returns values without the keys that have none.
func withoutNull(value any) any {
	switch value := value.(type) {
	case map[string]any:
		given := map[string]any{}
		for key, below := range value {
			if below != nil {
				given[key] = withoutNull(below)
			}
		}
		return given
	case []any:
		given := make([]any, len(value))
		for i, below := range value {
			given[i] = withoutNull(below)
		}
		return given
	}
	return value
}
