package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// object is a JSON object; encoding/json writes its keys in order.
type object = map[string]any

const marker = "+kubebuilder:validation:"

// generator reads types and writes those that are reachable from the root.
type generator struct {
	types map[string]*ast.TypeSpec
	docs  map[string]string
	// values are the constants of each named string type.
	values map[string][]string
	// names maps fields to their names in a file, for descriptions that mention them.
	names map[string]string
	defs  object
}

// read collects the types of the Go files of a folder.
func read(folder string) (*generator, error) {
	g := &generator{types: map[string]*ast.TypeSpec{}, docs: map[string]string{}, values: map[string][]string{},
		names: map[string]string{}, defs: object{}}
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", folder, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read source: %w", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse source: %w", err)
		}
		g.collect(file)
	}
	return g, nil
}

// generate returns the schema from the Go files of a folder.
func generate(folder string) ([]byte, error) {
	g, err := read(folder)
	if err != nil {
		return nil, err
	}
	root, err := g.structure("AgentConfig")
	if err != nil {
		return nil, err
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Berth's AgentConfig"
	root["$defs"] = g.defs
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return out.Bytes(), nil
}

// collect adds the types and constants of a file.
func (g *generator) collect(file *ast.File) {
	for _, declaration := range file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				g.types[spec.Name.Name] = spec
				g.docs[spec.Name.Name] = text(group.Doc)
				if structure, ok := spec.Type.(*ast.StructType); ok {
					g.collectNames(structure)
				}
			case *ast.ValueSpec:
				of, ok := spec.Type.(*ast.Ident)
				for _, value := range spec.Values {
					if literal, isText := value.(*ast.BasicLit); ok && isText && literal.Kind == token.STRING {
						plain, _ := strconv.Unquote(literal.Value)
						g.values[of.Name] = append(g.values[of.Name], plain)
					}
				}
			}
		}
	}
}

func (g *generator) collectNames(structure *ast.StructType) {
	for _, field := range structure.Fields.List {
		name, _, _ := tag(field)
		for _, ident := range field.Names {
			if name != "" && name != "-" {
				g.names[ident.Name] = name
			}
		}
	}
}

// structure returns the schema of a struct type.
func (g *generator) structure(name string) (object, error) {
	spec, ok := g.types[name].Type.(*ast.StructType)
	if !ok {
		return nil, fmt.Errorf("%s is not a struct", name)
	}
	properties, required, before := object{}, []string{}, ""
	for _, field := range spec.Fields.List {
		key, optional, inline := tag(field)
		if inline {
			properties["apiVersion"] = object{"const": "berth.dev/v1alpha1"}
			properties["kind"] = object{"const": name}
			continue
		}
		if key == "" || key == "-" || len(field.Names) == 0 {
			return nil, fmt.Errorf("a field of %s has no name in a file", name)
		}
		schema, err := g.schema(field.Type)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", name, key, err)
		}
		// A field without a comment shares the one of the field before it, or has its type's.
		said := text(field.Doc)
		if said == "" && schema["$ref"] == nil {
			said = before
		}
		if said != "" {
			schema["description"] = g.describe(said, field.Names[0].Name, key)
		}
		before = said
		if err := limits(field.Doc, schema); err != nil {
			return nil, fmt.Errorf("%s.%s: %w", name, key, err)
		}
		properties[key] = schema
		if !optional {
			required = append(required, key)
		}
	}
	schema := object{"type": "object", "additionalProperties": false, "properties": properties,
		"description": g.describe(g.docs[name], name, name)}
	if len(required) > 0 {
		schema["required"] = required
	}
	return schema, nil
}

// schema returns the schema of a field's type.
func (g *generator) schema(of ast.Expr) (object, error) {
	switch of := of.(type) {
	case *ast.StarExpr:
		return g.schema(of.X)
	case *ast.ArrayType:
		items, err := g.schema(of.Elt)
		return object{"type": "array", "items": items}, err
	case *ast.MapType:
		values, err := g.schema(of.Value)
		return object{"type": "object", "additionalProperties": values}, err
	case *ast.SelectorExpr:
		if of.Sel.Name == "Duration" {
			return object{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}, nil
		}
	case *ast.Ident:
		switch of.Name {
		case "string", "Lines":
			return object{"type": "string"}, nil
		case "bool":
			return object{"type": "boolean"}, nil
		case "int", "int64":
			return object{"type": "integer"}, nil
		case "uint64":
			return object{"type": "integer", "minimum": 0}, nil
		}
		if g.types[of.Name] != nil {
			return g.reference(of.Name)
		}
	}
	return nil, fmt.Errorf("no schema is known for this type")
}

// reference returns a reference to a named type, and adds its definition on first use.
func (g *generator) reference(name string) (object, error) {
	if g.defs[name] == nil {
		g.defs[name] = object{} // A type may refer to itself.
		definition, err := g.definition(name)
		if err != nil {
			return nil, err
		}
		g.defs[name] = definition
	}
	return object{"$ref": "#/$defs/" + name}, nil
}

func (g *generator) definition(name string) (object, error) {
	said := g.describe(g.docs[name], name, name)
	indices := object{"type": "array", "items": object{"type": "integer", "minimum": 0}}
	switch name {
	// The unions, whose Go type does not show the accepted values.
	case "StringOrList":
		return object{"description": said, "anyOf": []any{object{"type": "string"},
			object{"type": "array", "items": object{"type": "string"}}}}, nil
	case "AllOrIndices":
		return object{"description": said, "anyOf": []any{object{"const": "all"}, indices}}, nil
	}
	if ident, ok := g.types[name].Type.(*ast.Ident); ok && ident.Name == "string" {
		return object{"type": "string", "enum": g.values[name], "description": said}, nil
	}
	return g.structure(name)
}

// describe converts a comment to one line with the names of the file.
func (g *generator) describe(said, name, key string) string {
	if rest, ok := strings.CutPrefix(said, name+" "); ok {
		said = key + " " + rest
	}
	return regexp.MustCompile(`\b[A-Z]+[a-z]+[A-Z]\w*|\bMIG[A-Z]\w+`).ReplaceAllStringFunc(said, func(word string) string {
		if name, ok := g.names[word]; ok {
			return name
		}
		return word
	})
}

// text returns a comment as one line, without markers.
func text(comment *ast.CommentGroup) string {
	var kept []string
	for line := range strings.Lines(comment.Text()) {
		if !strings.HasPrefix(line, "+") {
			kept = append(kept, line)
		}
	}
	return strings.Join(strings.Fields(strings.Join(kept, " ")), " ")
}

// limits reads the markers Minimum and Maximum.
func limits(comment *ast.CommentGroup, schema object) error {
	for line := range strings.Lines(comment.Text()) {
		limit, ok := strings.CutPrefix(strings.TrimSpace(line), marker)
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(limit, "=")
		number, err := strconv.Atoi(value)
		if err != nil || name != "Minimum" && name != "Maximum" {
			return fmt.Errorf("the marker %s is not known", limit)
		}
		schema[strings.ToLower(name)] = number
	}
	return nil
}

// tag returns the name of a field in a file.
func tag(field *ast.Field) (name string, optional, inline bool) {
	if field.Tag == nil {
		return "", false, false
	}
	literal, _ := strconv.Unquote(field.Tag.Value)
	name, options, _ := strings.Cut(reflect.StructTag(literal).Get("json"), ",")
	return name, strings.Contains(options, "omit"), strings.Contains(options, "inline")
}
