package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// OpenRegular opens a file of a folder for reading and writing, such as a lock, and creates it if it does not exist. What has its name and
// is no regular file, such as a folder or a pipe, is renamed like a damaged state file.
func OpenRegular(folder *os.Root, name string) (*os.File, error) {
	switch info, err := folder.Lstat(name); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err == nil && !info.Mode().IsRegular():
		if err := folder.Rename(name, name+backupSuffix); err != nil {
			return nil, fmt.Errorf("%s is not a regular file, and could not be renamed: %w", name, err)
		}
	}
	return folder.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
}
