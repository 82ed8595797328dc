package print

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/template"
)

// templateName is what the library calls the template in its errors.
const templateName = "output"

// parseGoTemplate parses a template of text/template.
func parseGoTemplate(text string) (*template.Template, error) {
	parsed, err := template.New(templateName).Parse(text)
	if err == nil {
		return parsed, nil
	}
	err = goTemplateError(err)
	if at := strings.LastIndex(text, "{{"); at >= 0 && !strings.Contains(text[at:], "}}") {
		return nil, fmt.Errorf("the {{ at character %d is not closed", position(text, at))
	}
	// The first action after which the template is wrong, and not only without its {{end}}.
	for from := 0; ; {
		begin, end := strings.Index(text[from:], "{{"), strings.Index(text[from:], "}}")
		if begin < 0 || end < begin {
			break
		}
		begin, end = from+begin, from+end+len("}}")
		if _, bad := template.New(templateName).Parse(text[:end]); bad != nil && !strings.HasSuffix(bad.Error(), "unexpected EOF") {
			return nil, fmt.Errorf("%s at character %d: %w", text[begin:end], position(text, begin), err)
		}
		from = end
	}
	if strings.HasSuffix(err.Error(), "unexpected EOF") {
		return nil, fmt.Errorf("an {{end}} is missing at character %d, the end", position(text, len(text)))
	}
	return nil, err
}

// libraryPrefix is what text/template writes before what is wrong.
var libraryPrefix = regexp.MustCompile(`^template: ` + templateName + `:(\d+(?::\d+)?: )?(executing "` + templateName + `" )?`)

// goTemplateError returns an error of text/template without the name of the template and the line.
func goTemplateError(err error) error {
	return errors.New(libraryPrefix.ReplaceAllString(err.Error(), ""))
}
