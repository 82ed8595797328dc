package print

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"k8s.io/client-go/util/jsonpath"
)

// expression is a JSONPath: a template with paths in braces, or one path.
type expression struct{ text string }

// parsePath parses one path, such as .uuid, which may stand in braces.
func parsePath(text string) (*expression, error) {
	inner, shift := text, 0
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") && len(text) > 1 {
		inner, shift = text[1:len(text)-1], 1
	}
	if at := strings.IndexAny(inner, "{}"); at >= 0 {
		return nil, fmt.Errorf("the %c at character %d cannot be in a path", inner[at], position(text, at+shift))
	}
	if strings.TrimSpace(inner) == "" {
		return nil, fmt.Errorf("the path at character %d is empty", position(text, shift))
	}
	if !strings.ContainsAny(inner[:1], ".[@$") {
		inner = "." + inner
		shift--
	}
	if err := check("{"+inner+"}", shift-1); err != nil {
		return nil, err
	}
	return &expression{"{" + inner + "}"}, nil
}

// parseTemplate parses a template, such as {.items[*].uuid}. Text without braces is a path.
func parseTemplate(text string) (*expression, error) {
	if !strings.Contains(text, "{") {
		return parsePath(text)
	}
	if err := check(text, 0); err != nil {
		return nil, err
	}
	return &expression{text}, nil
}

// check returns what is wrong with a template and where; shift is the number of bytes by which what the user wrote begins earlier.
func check(text string, shift int) error {
	err := parse(text)
	if err == nil {
		return nil
	}
	if at, open := unclosed(text); open != "" {
		return fmt.Errorf("the %s at character %d is not closed", open, max(1, position(text, at)+shift))
	}
	for at, action := range actions(text) {
		if one := parse(action); one != nil {
			return fmt.Errorf("%s at character %d: %w", action, max(1, position(text, at)+shift), one)
		}
	}
	return err
}

// parse parses a template with the library, which panics for some that are wrong.
func parse(text string) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("it is no JSONPath")
		}
	}()
	return jsonpath.New("").Parse(text)
}

// position returns the character, counted from 1, at a byte.
func position(text string, at int) int { return utf8.RuneCountInString(text[:at]) + 1 }

// unclosed returns the last bracket or quote in an action of a template that is not closed.
func unclosed(text string) (at int, open string) {
	const opening, closing = "{[(", "}])"
	var stack []int // where brackets, and at last maybe a quote, were opened
	for i := range len(text) {
		c, top := text[i], byte(0)
		if len(stack) > 0 {
			top = text[stack[len(stack)-1]]
		}
		kind := strings.IndexByte(opening, top)
		switch {
		case top == '"' || top == '\'':
			if c == top && text[i-1] != '\\' {
				stack = stack[:len(stack)-1]
			}
		case top == 0 && c != '{': // text between actions
		case strings.IndexByte(opening+"\"'", c) >= 0:
			stack = append(stack, i)
		case kind >= 0 && c == closing[kind]:
			stack = stack[:len(stack)-1]
		case c == '}':
			return stack[len(stack)-1], string(top)
		}
	}
	if len(stack) == 0 {
		return 0, ""
	}
	last := stack[len(stack)-1]
	return last, text[last : last+1]
}

// actions yields the actions of a template in which everything is closed, with where they begin.
func actions(text string) func(func(int, string) bool) {
	return func(yield func(int, string) bool) {
		begin, quote := -1, byte(0)
		for i := range len(text) {
			switch c := text[i]; {
			case begin < 0 && c == '{':
				begin = i
			case begin < 0:
			case quote != 0:
				if c == quote && text[i-1] != '\\' {
					quote = 0
				}
			case c == '"' || c == '\'':
				quote = c
			case c == '}':
				if !yield(begin, text[begin:i+1]) {
					return
				}
				begin = -1
			}
		}
	}
}

// run evaluates the expression with the library, which panics for some values. A field that there is not is no error.
func (e *expression) run(use func(*jsonpath.JSONPath) error) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("%s does not fit the object", e.text)
		}
	}()
	path := jsonpath.New("").AllowMissingKeys(true)
	if err := path.Parse(e.text); err != nil {
		return err
	}
	return use(path)
}

// print writes the values with the text between them.
func (e *expression) print(w io.Writer, object any) error {
	return e.run(func(path *jsonpath.JSONPath) error { return path.Execute(w, object) })
}

// values returns the values at the path.
func (e *expression) values(object any) (values []any, err error) {
	err = e.run(func(path *jsonpath.JSONPath) error {
		found, err := path.FindResults(object)
		for _, results := range found {
			for _, value := range results {
				if value.IsValid() && value.CanInterface() && !isNil(value) {
					values = append(values, value.Interface())
				}
			}
		}
		return err
	})
	return values, err
}

func isNil(value reflect.Value) bool {
	return value.Kind() == reflect.Interface && value.IsNil()
}

// text returns a value as it is printed in a column.
func text(value any) string {
	switch value.(type) {
	case map[string]any, []any:
		if blob, err := json.Marshal(value); err == nil {
			return string(blob)
		}
	}
	return fmt.Sprint(value)
}
