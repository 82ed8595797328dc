// Package print prints the object of a command in kubectl's output formats: as a table, as JSON or YAML, and through a JSONPath, a Go
// template or columns that the user chooses; and it sorts the rows of the object.
//
// It guarantees that a wrong expression is an error before anything is read, which names the expression, the position and an example;
// that all formats show the same object, with its rows in the same order; and that columns cannot draw on a terminal. It must not
// import any package of Berth but internal/cli/term and internal/cli/usage.
package print
