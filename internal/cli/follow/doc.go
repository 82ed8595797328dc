// Package follow prints the rows of the objects of an API server, and then each row that changes, as kubectl get --watch does.
//
// It guarantees that a row is printed only when one of its cells differs from what was printed before, that nothing that happens while
// the connection is lost is missed, and that rows that do not exist any more, or whose object is not selected any more, are printed once
// more, marked. Cells that change by themselves, such as ages, do not count. What is selected is read again every few seconds, however
// many events there are. It must not import any package of Berth but internal/cli/term.
package follow
