// Package sbom writes the bill of materials of an image in the format CycloneDX: each Go module that its programs are
// built from, and each library of this machine with the package that it is from.
//
// It guarantees that the same files give the same bytes. It must not import packages of Berth.
package sbom

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// MediaType is the media type of the documents.
const MediaType = "application/vnd.cyclonedx+json"

// Subject is what a bill is of.
type Subject struct {
	// Name and Version are those of the image.
	Name    string
	Version string
	// Files maps paths in the image to paths on this machine.
	Files map[string]string
}

// Make returns the bill of an image as JSON.
func Make(ctx context.Context, s Subject) ([]byte, error) {
	found := map[string]cyclonedx.Component{}
	for _, path := range slices.Sorted(maps.Keys(s.Files)) {
		components, err := ofFile(ctx, path, s.Files[path])
		if err != nil {
			return nil, fmt.Errorf("list what %s of image %s is made of: %w", path, s.Name, err)
		}
		for _, c := range components {
			found[c.BOMRef] = c
		}
	}
	components := make([]cyclonedx.Component, 0, len(found))
	for _, ref := range slices.Sorted(maps.Keys(found)) {
		components = append(components, found[ref])
	}
	bill := cyclonedx.NewBOM()
	bill.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{BOMRef: s.Name, Type: cyclonedx.ComponentTypeContainer,
		Name: s.Name, Version: s.Version}}
	bill.Components = &components
	var out bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	// 1.6 is what scanners read today; the library's newest is 1.7.
	if err := encoder.EncodeVersion(bill, cyclonedx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("write bill of image %s: %w", s.Name, err)
	}
	return out.Bytes(), nil
}

// ofFile returns the components of a file: of a Go program its modules, of another file the package that it is from.
func ofFile(ctx context.Context, path, source string) ([]cyclonedx.Component, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	file := cyclonedx.Component{BOMRef: "file:" + path, Type: cyclonedx.ComponentTypeFile, Name: path,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}}
	build, err := buildinfo.Read(bytes.NewReader(content))
	if err == nil {
		return append(modules(build), file), nil
	}
	owner, err := debianPackage(ctx, source)
	if err != nil {
		return nil, err
	}
	if owner.Name == "" {
		return []cyclonedx.Component{file}, nil
	}
	return []cyclonedx.Component{owner, file}, nil
}

// modules returns the modules of a Go program, the standard library among them. The version is the one that was compiled:
// of a replaced module the replacement's.
func modules(build *debug.BuildInfo) []cyclonedx.Component {
	components := []cyclonedx.Component{module("stdlib", strings.TrimPrefix(build.GoVersion, "go"))}
	for _, m := range build.Deps {
		// A replacement by a directory is a module of Berth itself, and has no version: the go command writes none, or "(devel)".
		if r := m.Replace; r != nil && r.Version != "" && r.Version != "(devel)" {
			m = m.Replace
		}
		components = append(components, module(m.Path, m.Version))
	}
	return components
}

func module(path, version string) cyclonedx.Component {
	purl := "pkg:golang/" + path + "@" + url.PathEscape(version)
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

// debianPackage returns the package that a file of this machine is from; one without a name on a machine without dpkg, or
// of a file that no package has.
func debianPackage(ctx context.Context, file string) (cyclonedx.Component, error) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return cyclonedx.Component{}, nil
	}
	resolved, err := filepath.EvalSymlinks(file)
	if err != nil {
		return cyclonedx.Component{}, err
	}
	// On a system whose /lib is a link to /usr/lib, packages name their files in either directory.
	for _, name := range []string{resolved, strings.TrimPrefix(resolved, "/usr"), file} {
		out, err := exec.CommandContext(ctx, "dpkg-query", "--search", name).Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			continue
		}
		if err != nil {
			return cyclonedx.Component{}, fmt.Errorf("find the package of %s: %w", file, err)
		}
		owner, _, _ := strings.Cut(string(out), ": ")
		version, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${Version}", owner).Output()
		if err != nil {
			return cyclonedx.Component{}, fmt.Errorf("find the version of package %s: %w", owner, err)
		}
		name, _, _ := strings.Cut(owner, ":")
		purl := fmt.Sprintf("pkg:deb/%s/%s@%s?arch=%s", distribution(), name, url.PathEscape(string(version)), runtime.GOARCH)
		return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: name, Version: string(version), PackageURL: purl}, nil
	}
	return cyclonedx.Component{}, nil
}

// distribution returns the ID of this system in /etc/os-release, such as debian or ubuntu.
func distribution() string {
	content, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(content)) {
		if id, found := strings.CutPrefix(strings.TrimSpace(line), "ID="); found {
			return strings.Trim(id, `"'`)
		}
	}
	return "debian"
}
