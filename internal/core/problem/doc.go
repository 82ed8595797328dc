// Package problem is the catalogue of the problems that Berth reports about a node's GPUs: each code with its meaning
// and its fix.
//
// It guarantees that it contains every code that a package reports and no other code, and that docs/problems.md is
// generated from it; tests check this. A message says what was found and where; the catalogue says what that means in
// general. It must not import anything but the standard library and the other packages of core.
package problem

//go:generate go run ./internal/docgen
