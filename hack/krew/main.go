// Command krew makes what krew, the plugin manager of kubectl, installs "kubectl berth" from: an archive for each platform, and the
// manifest berth.yaml with their addresses and checksums.
//
// It guarantees that the same programs give the same bytes, and that it writes no manifest that krew would refuse. It must not be
// imported; hack/release.sh runs it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// manifestName is that of the manifest, which krew requires to be the name of the plugin.
const manifestName = plugin + ".yaml"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
}

// run makes the archives and the manifest, and prints their paths.
func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("krew", flag.ContinueOnError)
	version := flags.String("version", "", "the version, such as v1.2.3")
	base := flags.String("base", "", "the address below which the archives are published")
	license := flags.String("license", "LICENSE", "the file with the license, which krew requires in each archive")
	dir := flags.String("out", ".", "the directory to write to")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: krew -version VERSION -base URL [-out DIR] OS-ARCH=PROGRAM...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return fmt.Errorf("no platform is given: want OS-ARCH=PROGRAM, such as linux-amd64=bin/berth")
	}
	text, err := os.ReadFile(*license)
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	made := manifest(*version)
	for _, arg := range flags.Args() {
		platform, program, ok := strings.Cut(arg, "=")
		system, arch, both := strings.Cut(platform, "-")
		if !ok || !both {
			return fmt.Errorf("%s: want OS-ARCH=PROGRAM, such as linux-amd64=bin/berth", arg)
		}
		binary, err := os.ReadFile(program)
		if err != nil {
			return fmt.Errorf("read the program of %s: %w", platform, err)
		}
		content, err := archive(binary, text)
		if err != nil {
			return fmt.Errorf("make the archive of %s: %w", platform, err)
		}
		name := fmt.Sprintf("kubectl-%s-%s-%s.tar.gz", plugin, *version, platform)
		if err := write(out, filepath.Join(*dir, name), content); err != nil {
			return err
		}
		made.add(system, arch, strings.TrimSuffix(*base, "/")+"/"+name, content)
	}
	if err := made.check(); err != nil {
		return fmt.Errorf("krew would refuse %s: %w", manifestName, err)
	}
	content, err := made.yaml()
	if err != nil {
		return err
	}
	return write(out, filepath.Join(*dir, manifestName), content)
}

func write(out io.Writer, path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("write what krew installs: %w", err)
	}
	_, err := fmt.Fprintln(out, path)
	return err
}
