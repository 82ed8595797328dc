package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/node/config"
)

const documentHead = `<!-- Made by go generate ./internal/node/config; do not edit. -->
# Configuration of the agent

` + "`berth-agent --config FILE`" + ` reads a YAML or JSON file. Each key can be left out. An unknown key or a wrong type is an error, which names
the line and the fix. Flags of the same meaning win over the file. A file of NVIDIA's device plugin (` + "`version: v1`" + `) is read too.

` + "```yaml" + `
apiVersion: berth.dev/v1alpha1
kind: AgentConfig
resourceName: nvidia.com/gpu
` + "```" + `

"At once" means that a change of the file takes effect while the agent runs; "at the next start" means that the agent keeps the old value
and reports the difference as a problem of the node.
`

// document returns docs/configuration.md.
func document(folder string) ([]byte, error) {
	g, err := read(folder)
	if err != nil {
		return nil, err
	}
	defaults, err := defaults()
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	out.WriteString(documentHead)
	types, err := g.keys(&out, defaults)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(types); i++ { // the list grows
		more, err := g.table(&out, types[i])
		if err != nil {
			return nil, err
		}
		for _, name := range more {
			if !slices.Contains(types, name) {
				types = append(types, name)
			}
		}
	}
	return []byte(out.String()), nil
}

// defaults returns the text of each key's default, from an empty file.
func defaults() (map[string]string, error) {
	read, err := config.Parse("defaults", []byte("apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\nnodeName: a\n"), nil)
	if err != nil {
		return nil, fmt.Errorf("read an empty configuration: %w", err)
	}
	text, err := json.Marshal(read)
	if err != nil {
		return nil, fmt.Errorf("write the defaults: %w", err)
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("read the defaults: %w", err)
	}
	found := map[string]string{}
	for key, value := range values {
		found[key] = "`" + strings.Trim(string(value), `"`) + "`"
	}
	// These depend on the machine or on other keys.
	found["nodeName"] = "the environment variable `NODE_NAME`, then the host name"
	found["devRoot"] = "the value of `driverRoot`"
	found["labels"] = "`output: node`; `none` with `standalone`"
	return found, nil
}

// keys writes a section for each key of the file, and returns the structs that they use.
func (g *generator) keys(out *strings.Builder, defaults map[string]string) ([]string, error) {
	var types []string
	said := ""
	for _, field := range g.fields("AgentConfig") {
		key, _, _ := tag(field)
		kind, used := g.kind(field.Type)
		if used != "" && !slices.Contains(types, used) {
			types = append(types, used)
		}
		// A field without a comment shares the one of the field before it.
		if own := text(field.Doc); own != "" {
			said = own
		}
		example, ok := examples()[key]
		if !ok {
			return nil, fmt.Errorf("the key %s has no example: add one to examples.go", key)
		}
		value, ok := defaults[key]
		switch {
		case ok:
		case kind == "boolean":
			value = "`false`"
		default:
			value = "none"
		}
		when := "at once"
		if slices.Contains(config.StaticFields(), key) {
			when = "at the next start"
		}
		fmt.Fprintf(out, "\n## %s\n\n%s\n\nType: %s. Default: %s. A change takes effect %s.\n\n```yaml\n%s\n```\n",
			key, g.describe(said, field.Names[0].Name, key), kind, value, when, example)
	}
	return types, nil
}

// table writes the keys of a struct, and returns the structs that they use.
func (g *generator) table(out *strings.Builder, name string) ([]string, error) {
	fields := g.fields(name)
	if len(fields) == 0 {
		return nil, fmt.Errorf("%s has no fields", name)
	}
	fmt.Fprintf(out, "\n## %s\n\n%s\n\n| key | type | meaning |\n|---|---|---|\n", name, g.describe(g.docs[name], name, name))
	var types []string
	for _, field := range fields {
		key, _, _ := tag(field)
		kind, used := g.kind(field.Type)
		if used != "" {
			types = append(types, used)
		}
		said := g.describe(text(field.Doc), field.Names[0].Name, key)
		if of, ok := field.Type.(*ast.Ident); ok && said == "" {
			said = g.describe(g.docs[of.Name], of.Name, key)
		}
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", key, strings.ReplaceAll(kind, "|", `\|`), strings.ReplaceAll(said, "|", `\|`))
	}
	return types, nil
}

// fields returns the fields of a struct that have a key, in their order in the source.
func (g *generator) fields(name string) []*ast.Field {
	spec, ok := g.types[name].Type.(*ast.StructType)
	if !ok {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(spec.Fields.List), func(field *ast.Field) bool {
		key, _, inline := tag(field)
		return inline || key == "" || key == "-" || len(field.Names) == 0
	})
}

// kind returns the type of a field as text, and the struct that it uses.
func (g *generator) kind(of ast.Expr) (words, used string) {
	switch of := of.(type) {
	case *ast.StarExpr:
		return g.kind(of.X)
	case *ast.ArrayType:
		words, used = g.kind(of.Elt)
		return "list of " + words, used
	case *ast.MapType:
		words, used = g.kind(of.Value)
		return "map of names to " + words, used
	case *ast.SelectorExpr:
		return "duration", ""
	case *ast.Ident:
		switch of.Name {
		case "string":
			return "text", ""
		case "Lines":
			return "text of several lines", ""
		case "bool":
			return "boolean", ""
		case "int", "int64", "uint64":
			return "integer", ""
		case "StringOrList":
			return "text or list of texts", ""
		case "AllOrIndices":
			return "`all` or list of integers", ""
		}
		if values := g.values[of.Name]; len(values) > 0 {
			return "`" + strings.Join(values, "` or `") + "`", ""
		}
		return "[" + of.Name + "](#" + strings.ToLower(of.Name) + ")", of.Name
	}
	return "", ""
}
