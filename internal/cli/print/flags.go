package print

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/pflag"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cli/usage"
)

// The formats of -o. Those that take an expression have it after an equals sign.
const (
	Table         = "table"
	Wide          = "wide"
	Name          = "name"
	JSON          = "json"
	YAML          = "yaml"
	JSONPath      = "jsonpath"
	GoTemplate    = "go-template"
	CustomColumns = "custom-columns"
)

// Offer says what a command can print.
type Offer struct {
	// List is the field of the object that has the rows, and Field a field of a row, for examples. An object without rows has no
	// custom-columns, no --sort-by and no --no-headers.
	List  string
	Field string
	// Named is set when rows have names, for -o name.
	Named bool
	// Wide is set when the table has more columns with -o wide.
	Wide bool
	// OwnSort is set when the command has a --sort-by of its own.
	OwnSort bool
	// NoTable is set when there is no table: YAML is the default then.
	NoTable bool
}

// formats returns the formats, in the order of the help.
func (o *Offer) formats() []string {
	return slices.DeleteFunc([]string{Table, Wide, Name, JSON, YAML, JSONPath, GoTemplate, CustomColumns}, func(format string) bool {
		switch format {
		case Table:
			return o.NoTable
		case Wide:
			return !o.Wide
		case Name:
			return !o.Named
		case CustomColumns:
			return o.List == ""
		}
		return false
	})
}

// help lists the formats for a sentence.
func (o *Offer) help() string {
	texts := o.formats()
	for i, format := range texts {
		switch format {
		case JSONPath, GoTemplate:
			texts[i] = format + "=TEMPLATE"
		case CustomColumns:
			texts[i] = format + "=HEAD:PATH,..."
		}
	}
	last := len(texts) - 1
	return strings.Join(texts[:last], ", ") + " or " + texts[last]
}

// example returns an example of an expression.
func (o *Offer) example(format string) string {
	path := ".kind"
	if o.List != "" {
		path = "." + o.List + "[*]." + o.Field
	}
	switch format {
	case JSONPath:
		return "-o jsonpath='{" + path + "}'"
	case GoTemplate:
		if o.List != "" {
			return fmt.Sprintf(`-o go-template='{{range .%s}}{{.%s}}{{"\n"}}{{end}}'`, o.List, o.Field)
		}
		return "-o go-template='{{.kind}}'"
	case CustomColumns:
		return "-o custom-columns=" + strings.ToUpper(o.Field[strings.LastIndexByte(o.Field, '.')+1:]) + ":." + o.Field
	}
	return "--sort-by=." + o.Field
}

// Flags are the flags about the output.
type Flags struct {
	offer     Offer
	output    string
	noHeaders bool
	sortBy    string

	// What Validate made of them.
	format   string
	path     *expression
	template *template.Template
	columns  []column
	sort     *expression
}

// AddTo adds the flags to a command.
func (f *Flags) AddTo(set *pflag.FlagSet, offer Offer) {
	f.offer = offer
	def := Table
	if offer.NoTable {
		def = YAML
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.StringVarP(&f.output, "output", "o", def, "the output `format`: "+offer.help())
	if offer.List != "" {
		own.BoolVar(&f.noHeaders, "no-headers", false, "print the rows of a table alone, without its header and the notes below it")
	}
	if offer.List != "" && !offer.OwnSort {
		own.StringVar(&f.sortBy, "sort-by", "", "sort the rows by the field at this JSONPath, such as ."+offer.Field)
	}
	usage.SetValues(own.Lookup("output"), completed(offer.formats())...)
	own.VisitAll(func(flag *pflag.Flag) {
		set.AddFlag(flag)
		usage.SetGroup(flag, usage.Output)
	})
}

// completed returns formats as a shell completes them: those that take an expression end with =.
func completed(formats []string) []string {
	made := slices.Clone(formats)
	for i, format := range made {
		if format == JSONPath || format == GoTemplate || format == CustomColumns {
			made[i] += "="
		}
	}
	return made
}

// Validate reads the flags. It returns an error for a format that there is not, and for a wrong expression.
func (f *Flags) Validate() error {
	format, text, given := strings.Cut(f.output, "=")
	if !slices.Contains(f.offer.formats(), format) {
		return fmt.Errorf("-o %s: want %s", f.output, f.offer.help())
	}
	f.format = format
	var err error
	switch takes := format == JSONPath || format == GoTemplate || format == CustomColumns; {
	case takes && text == "":
		return fmt.Errorf("-o %s: the expression is missing, for example: %s", format, f.offer.example(format))
	case !takes && given:
		return fmt.Errorf("-o %s: %s takes no expression; leave out %q", f.output, format, "="+text)
	case format == JSONPath:
		f.path, err = parseTemplate(text)
	case format == GoTemplate:
		f.template, err = parseGoTemplate(text)
	case format == CustomColumns:
		f.columns, err = parseColumns(text)
	}
	if err != nil {
		return fmt.Errorf("-o %s: %w; for example: %s", f.output, err, f.offer.example(format))
	}
	if f.sortBy != "" {
		if f.sort, err = parsePath(f.sortBy); err != nil {
			return fmt.Errorf("--sort-by %s: %w; for example: %s", f.sortBy, err, f.offer.example(""))
		}
	}
	return nil
}

// IsTable reports whether the output is a table for people, with more columns or not.
func (f *Flags) IsTable() bool { return f.format == Table || f.format == Wide }

// IsWide reports whether the table has more columns.
func (f *Flags) IsWide() bool { return f.format == Wide }

// Format returns the format.
func (f *Flags) Format() string { return f.format }

// RowsOnly reports whether the header of a table, and the notes below it, are left out.
func (f *Flags) RowsOnly() bool { return f.noHeaders }

// Sorted reports whether the user wants the rows sorted.
func (f *Flags) Sorted() bool { return f.sort != nil }

// Table prints a table.
func (f *Flags) Table(w io.Writer, head []string, rows [][]string) error {
	if f.noHeaders {
		head = nil
	}
	return term.Table(w, head, rows)
}

// Print prints the object, of which rows are the rows, after it has sorted them. table prints it for people.
func (f *Flags) Print(w io.Writer, object any, rows Rows, table func(io.Writer) error) error {
	if f.sort != nil {
		if err := rows.sortBy(f.sort); err != nil {
			return fmt.Errorf("--sort-by %s: %w", f.sortBy, err)
		}
	}
	switch f.format {
	case JSON:
		return writeJSON(w, object)
	case YAML:
		text, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	case Name:
		return rows.printNames(w)
	case CustomColumns:
		head, cells, err := rows.cells(f.columns)
		if err != nil {
			return err
		}
		return f.Table(w, head, cells)
	case JSONPath, GoTemplate:
		return f.printTemplate(w, object)
	}
	return table(w)
}

// writeJSON writes an object as JSON for people and programs.
func writeJSON(w io.Writer, object any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(object)
}

// printTemplate prints the object through the JSONPath or the Go template. A line that has not ended is ended.
func (f *Flags) printTemplate(w io.Writer, object any) error {
	value, err := generic(object)
	if err != nil {
		return err
	}
	var text strings.Builder
	if f.path != nil {
		err = f.path.print(&text, value)
	} else if err = f.template.Execute(&text, value); err != nil {
		err = goTemplateError(err)
	}
	if err != nil {
		return fmt.Errorf("-o %s: %w", f.output, err)
	}
	if text.Len() > 0 && !strings.HasSuffix(text.String(), "\n") {
		text.WriteByte('\n')
	}
	_, err = io.WriteString(w, text.String())
	return err
}

// generic returns an object as maps and lists, with whole numbers as integers.
func generic(object any) (any, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	var value any
	if err := utiljson.Unmarshal(text, &value); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return value, nil
}
