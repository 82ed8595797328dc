// Package hosttest makes the files, processes and sockets of nodes of different distributions in a directory, for tests and for the table
// of distributions in docs/compatibility.md.
//
// It guarantees that a host is the same each time, and that it is what its description in hosts/ says. It must not import the package that
// it is for, or another package of Berth.
package hosttest
