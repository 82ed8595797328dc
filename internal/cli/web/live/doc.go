// Package live keeps lists of objects of the API server current, so that a page can be shown many times without reading them many times.
//
// It guarantees that a list is that of the API server, at most as old as its watch is behind, in the order of namespaces and names, and
// that its objects are not changed by later events. It must not import other packages of Berth.
package live
