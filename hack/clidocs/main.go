// Command clidocs writes docs/cli from the commands of berth, berth-agent and berth-operator: one page per command and an index. With -man
// it writes the pages of the manual instead, which a release has.
//
// It must not be imported; go generate runs it, in its own directory, and hack/release.sh with -man.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

// folder is the directory of the pages, relative to this package.
const folder = "../../docs/cli"

func main() {
	man := flag.String("man", "", "write the pages of the manual into this `directory`, and nothing else")
	version := flag.String("version", "", "the version that the pages of the manual name")
	flag.Parse()
	err := error(nil)
	if *man != "" {
		err = writeMan(*man, *version)
	} else {
		err = write(folder, pages(programs()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "clidocs:", err)
		os.Exit(1)
	}
}

// write writes the pages to dir and removes other Markdown files.
func write(dir string, pages map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	present, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return err
	}
	for _, path := range present {
		if _, ok := pages[filepath.Base(path)]; ok {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
