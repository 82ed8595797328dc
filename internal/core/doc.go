// Package core groups the pure decisions: the nouns of GPUs, placement, MIG layouts, health, the join of a trace.
//
// What belongs here is a function over plain values: no I/O, no clock, no goroutine, no Kubernetes type. Packages
// below it may import the standard library and one another, nothing else; hack/rules/architecture_test.go is the rule.
package core
