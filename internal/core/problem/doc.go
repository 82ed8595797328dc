// Package problem is the catalogue of everything that can be wrong with a node's GPUs,
// as far as Berth can say it: each code with what it means and what to do.
//
// It guarantees that every code that a package raises is here, that no other is, and that
// docs/problems.md is made of it; tests hold all three. A package's own message says what was
// found and where; the catalogue says what that means in general. It is pure: it must not
// import anything but the standard library and the other packages of core.
package problem

//go:generate go run ./internal/docgen
