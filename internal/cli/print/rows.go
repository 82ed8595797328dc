package print

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/cli/term"
)

// Rows are the rows of an object. The zero value has none.
type Rows struct {
	count   int
	at      func(int) any
	name    func(int) string
	reorder func([]int)
}

// Of returns the elements of a list as rows; name may be nil when rows have none.
func Of[T any](list []T, name func(*T) string) Rows {
	rows := Rows{count: len(list), at: func(i int) any { return &list[i] }}
	if name != nil {
		rows.name = func(i int) string { return name(&list[i]) }
	}
	rows.reorder = func(order []int) {
		before := slices.Clone(list)
		for to, from := range order {
			list[to] = before[from]
		}
	}
	return rows
}

// sortBy sorts the rows by the first value at the path. Rows without it are last, and the order of others that are equal stays.
func (r *Rows) sortBy(path *expression) error {
	keys, order, found := make([]any, r.count), make([]int, r.count), false
	var fields []string
	for i := range r.count {
		order[i] = i
		row, err := generic(r.at(i))
		if err != nil {
			return err
		}
		values, err := path.values(row)
		if err != nil {
			return err
		}
		if len(values) > 0 {
			keys[i], found = values[0], true
		}
		if object, ok := row.(map[string]any); ok {
			fields = append(fields, slices.Collect(maps.Keys(object))...)
		}
	}
	if r.count == 0 {
		return nil
	}
	if !found {
		slices.Sort(fields)
		return fmt.Errorf("no row has a value there; the fields of the rows are .%s", strings.Join(slices.Compact(fields), ", ."))
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(keys[a], keys[b]) })
	r.reorder(order)
	return nil
}

// kindOrder is the order of values of different types.
func kindOrder(value any) int {
	switch value.(type) {
	case bool:
		return 0
	case int64, float64:
		return 1
	case string:
		return 2
	case nil:
		return 4
	}
	return 3
}

// compare compares two values of JSON: numbers by their value, and texts so that node-9 is before node-10.
func compare(a, b any) int {
	if order := cmp.Compare(kindOrder(a), kindOrder(b)); order != 0 {
		return order
	}
	switch a := a.(type) {
	case bool:
		return cmp.Compare(boolNumber(a), boolNumber(b.(bool)))
	case int64, float64:
		return cmp.Compare(number(a), number(b))
	case string:
		return compareText(a, b.(string))
	case nil:
		return 0
	}
	return cmp.Compare(text(a), text(b))
}

func boolNumber(value bool) int {
	if value {
		return 1
	}
	return 0
}

func number(value any) float64 {
	if whole, ok := value.(int64); ok {
		return float64(whole)
	}
	return value.(float64)
}

// compareText compares texts with the numbers in them by their value.
func compareText(a, b string) int {
	restA, restB := a, b
	for restA != "" && restB != "" {
		digitsA, digitsB := digits(restA), digits(restB)
		if digitsA == "" || digitsB == "" {
			if restA[0] != restB[0] {
				return cmp.Compare(restA[0], restB[0])
			}
			restA, restB = restA[1:], restB[1:]
			continue
		}
		bareA, bareB := strings.TrimLeft(digitsA, "0"), strings.TrimLeft(digitsB, "0")
		if order := cmp.Or(cmp.Compare(len(bareA), len(bareB)), cmp.Compare(bareA, bareB)); order != 0 {
			return order
		}
		restA, restB = restA[len(digitsA):], restB[len(digitsB):]
	}
	return cmp.Or(cmp.Compare(len(restA), len(restB)), cmp.Compare(a, b))
}

// digits returns the digits that a text begins with.
func digits(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return text
	}
	return text[:end]
}

// printNames prints the names, without those that repeat the one before.
func (r *Rows) printNames(w io.Writer) error {
	last := ""
	for i := range r.count {
		name := term.Clean(r.name(i))
		if name == last {
			continue
		}
		last = name
		if _, err := fmt.Fprintln(w, name); err != nil {
			return err
		}
	}
	return nil
}

// absent is the cell of a row that has no value there.
const absent = "<none>"

// cells returns the table with the columns that the user chose.
func (r *Rows) cells(columns []column) (head []string, rows [][]string, err error) {
	for _, one := range columns {
		head = append(head, one.head)
	}
	for i := range r.count {
		row, err := generic(r.at(i))
		if err != nil {
			return nil, nil, err
		}
		var cells []string
		for _, one := range columns {
			values, err := one.path.values(row)
			if err != nil {
				return nil, nil, fmt.Errorf("the column %s: %w", one.head, err)
			}
			var texts []string
			for _, value := range values {
				texts = append(texts, text(value))
			}
			cells = append(cells, cmp.Or(strings.Join(texts, ","), absent))
		}
		rows = append(rows, cells)
	}
	return head, rows, nil
}
