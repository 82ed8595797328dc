// Package hardware opens the GPUs of each vendor behind one interface. Below it are one adapter per vendor, and the
// simulator, which replaces the machine that an adapter reads.
//
// Packages below it may import internal/core and libraries of their hardware, no Kubernetes, and not one another's
// vendor; interfaces that internal/node declares are satisfied without importing it. hack/rules/architecture_test.go is the rule.
package hardware
