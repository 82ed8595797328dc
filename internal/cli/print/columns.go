package print

import (
	"fmt"
	"strings"
)

// column is a column that the user chose.
type column struct {
	head string
	path *expression
}

// parseColumns parses HEAD:PATH,HEAD:PATH. A comma within brackets or quotes does not end a column.
func parseColumns(text string) ([]column, error) {
	var columns []column
	begin := 0
	for _, part := range splitColumns(text) {
		head, path, ok := strings.Cut(part, ":")
		switch {
		case strings.TrimSpace(part) == "":
			return nil, fmt.Errorf("the column at character %d is empty", position(text, begin))
		case !ok:
			return nil, fmt.Errorf("the column %s at character %d has no path: want HEAD:PATH", part, position(text, begin))
		case head == "":
			return nil, fmt.Errorf("the column %s at character %d has no head: want HEAD:PATH", part, position(text, begin))
		}
		parsed, err := parsePath(path)
		if err != nil {
			return nil, fmt.Errorf("the column %s at character %d: in the path %s, %w", head, position(text, begin), path, err)
		}
		columns = append(columns, column{head, parsed})
		begin += len(part) + 1
	}
	return columns, nil
}

// splitColumns splits at the commas that are outside of brackets and quotes.
func splitColumns(text string) []string {
	var parts []string
	begin, depth, quote := 0, 0, rune(0)
	for i, r := range text {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '"' || r == '\'':
			quote = r
		case r == '[' || r == '(':
			depth++
		case r == ']' || r == ')':
			depth--
		case r == ',' && depth <= 0:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	return append(parts, text[begin:])
}
