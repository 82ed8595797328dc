// Package program says what is in the image of each program of Berth.
//
// It guarantees that an image has the program, the files that it needs, and nothing else of this machine, and that its
// labels have the version that the program itself prints. It must not import packages of Berth but internal/core/version and
// hack/images/image.
package program

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/internal/core/version"
)

// nonRoot is the user and group of every program but the agent: the number that distroless images use.
const nonRoot = "65532:65532"

// Program is a program with an image of its own, which has its name.
type Program struct {
	Name string
	// Files maps paths in the image to names of programs in the directory of the programs. The entrypoint is /Name.
	Files map[string]string
	// User is as in [image.Spec].
	User string
	// Description is one line for people who list a registry.
	Description string
}

// Agent is the agent's image. Its user is root: the agent makes device nodes, files and sockets on the host.
func Agent() Program {
	return Program{Name: "berth-agent", Description: "Berth's agent: finds, advertises and allocates the GPUs of a node",
		Files: map[string]string{"/berth-agent": "berth-agent", "/berth-cdi-hook": "berth-cdi-hook"}}
}

// All returns the programs whose images are published, sorted by name.
func All() []Program {
	return []Program{
		{Name: "berth", User: nonRoot, Description: "Berth's command line: which pod holds which GPU, and why",
			Files: map[string]string{"/berth": "berth"}},
		Agent(),
		{Name: "berth-operator", User: nonRoot, Description: "Berth's operator: keeps what Berth needs in a cluster",
			Files: map[string]string{"/berth-operator": "berth-operator"}},
		{Name: "berth-scheduler", User: nonRoot, Description: "Berth's scheduler: kube-scheduler that chooses nodes by the GPUs a pod would get",
			Files: map[string]string{"/berth-scheduler": "berth-scheduler"}},
	}
}

// files returns the files of the program's image: paths in the image to paths on this machine. They are its programs of the
// directory bin and the libraries that these are linked with.
func (p Program) files(bin string) (map[string]string, error) {
	files := map[string]string{}
	for path, name := range p.Files {
		source := filepath.Join(bin, name)
		libraries, err := sharedLibraries(source)
		if err != nil {
			return nil, err
		}
		files[path] = source
		for _, library := range libraries {
			files[library] = library
		}
	}
	return files, nil
}

// Spec returns the program's image, made of the programs in bin.
func (p Program) Spec(bin string) (image.Spec, error) {
	files, err := p.files(bin)
	if err != nil {
		return image.Spec{}, fmt.Errorf("make image of %s: %w", p.Name, err)
	}
	created, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return image.Spec{}, fmt.Errorf("make image of %s: %w", p.Name, err)
	}
	build := version.Current()
	return image.Spec{Entrypoint: []string{"/" + p.Name}, Files: files, User: p.User, Created: created, Labels: map[string]string{
		"org.opencontainers.image.title":       p.Name,
		"org.opencontainers.image.description": p.Description,
		"org.opencontainers.image.version":     build.Version,
		"org.opencontainers.image.revision":    build.Commit,
		"org.opencontainers.image.source":      "https://github.com/berth-gpu/berth",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}}, nil
}

// CheckVersion reports a program of bin that is of another version than this one, which writes the labels.
func (p Program) CheckVersion(ctx context.Context, bin string) error {
	want := version.Current()
	for name := range maps.Values(p.Files) {
		out, err := exec.CommandContext(ctx, filepath.Join(bin, name), "--version").Output()
		if err != nil {
			return fmt.Errorf("ask %s for its version: %w", name, err)
		}
		if !strings.Contains(string(out), " "+want.Version+" (commit "+want.Commit+",") {
			return fmt.Errorf("%s is %q, and the label of its image would be %s (commit %s): build all programs of one commit with make build",
				name, strings.TrimSpace(string(out)), want.Version, want.Commit)
		}
	}
	return nil
}

// sourceDate returns the time that the variable SOURCE_DATE_EPOCH has in seconds since the Unix epoch; the zero time for "".
func sourceDate(seconds string) (time.Time, error) {
	if seconds == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q: want seconds since 1970, such as the output of git log -1 --format=%%ct", seconds)
	}
	return time.Unix(n, 0), nil
}
