// Package config reads the agent's configuration file: strict, defaulted, and
// with an error that names file, line, field and fix for everything that is
// wrong, all at once.
//
// It guarantees that a config which it returns is complete (every default
// filled in) and consistent (no combination that the agent could not honour).
// It reads one file and touches nothing else; it must not import any room but
// spelling and the public types of api/v1alpha1.
package config
