// Package statefile reads and writes the JSON files in which Berth keeps its state on a node.
//
// All files have the same form: an envelope with the format's name, its version, optionally the boot and the node that
// the content belongs to, a checksum, and the content.
//
//	{"format":"berth-units","version":1,"bootID":"…","nodeUID":"…","crc32c":123,"content":{…}}
//
// It guarantees:
//
//   - A reader sees the old content or the new, also after a kill or a power failure at any step of a write:
//     the content is synced before it gets the file's name, and the folder after that.
//   - A file that is damaged, is too large, has another format, or was written by a newer Berth is never treated as an
//     empty one: the state reports it, with a readable message.
//   - Such a file is renamed with the suffix ".bak" before a new one is written. There is one backup per state file,
//     the newest; the message says when it replaced an earlier one.
//   - What is no regular file, such as a folder, a pipe or a link, counts as damaged: it is not opened in a way that could block, not
//     followed, and renamed like a damaged file.
//   - A file that cannot be read (an error of the disk) is not renamed.
//   - Errors of a write have the same text each time, so that they can be compared. The caller repeats it: see Retry.
//   - Files are readable and writable by their owner only.
//
// What to do without the content is the caller's decision: the caller knows whether "no content" is safe. The package
// does not depend on hardware or Kubernetes, reads no clock, and must not import another package of Berth.
package statefile
