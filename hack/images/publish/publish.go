// Package publish pushes images and their bills of materials to a registry.
//
// It guarantees that a tag refers to an image only when all of the image is there, and that a bill is attached to the
// digest of its image. It must not import packages of Berth but those of hack/images.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/sbom"
)

// Deps are what a [Publisher] needs.
type Deps struct {
	// Registry is a registry, with or without a path in it, such as registry.example.com/berth.
	Registry string
	// Keychain has the credentials; nil takes those of docker and podman: $DOCKER_CONFIG/config.json, ~/.docker/config.json and
	// $REGISTRY_AUTH_FILE.
	Keychain authn.Keychain
	// Progress is called with the bytes of an image that are sent, and with all of them; it may be nil.
	Progress func(sent, all int64)
}

// Publisher pushes images to a registry.
type Publisher struct {
	deps Deps
}

// New returns a publisher, or an error if the registry's name is none.
func New(d Deps) (*Publisher, error) {
	host, _, _ := strings.Cut(d.Registry, "/")
	// A name without a registry would be a repository of Docker Hub.
	if to, err := name.NewRepository(d.Registry + "/berth"); err != nil || to.RegistryStr() != host || strings.HasSuffix(host, ":") {
		return nil, fmt.Errorf("%q is not a registry with or without a path, such as registry.example.com/berth%s", d.Registry, because(err))
	}
	if d.Keychain == nil {
		d.Keychain = authn.DefaultKeychain
	}
	return &Publisher{deps: d}, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Push pushes an image under the last part of its name, with the bill attached to it, and returns its reference in the
// registry, with the tag and the digest. What the registry has already is not sent a second time.
func (p *Publisher) Push(ctx context.Context, img image.Named, bill []byte) (string, error) {
	tag, err := p.tag(img.Name)
	if err != nil {
		return "", err
	}
	digest, err := p.push(ctx, tag, img.Image, bill)
	if err != nil {
		return "", fmt.Errorf("push %s: %w%s", tag, err, advice(err, tag))
	}
	return tag.String() + "@" + digest.String(), nil
}

// tag returns the reference in the registry of the image with a name.
func (p *Publisher) tag(reference string) (name.Tag, error) {
	from, err := name.NewTag(reference)
	if err != nil {
		return name.Tag{}, err
	}
	return name.NewTag(p.deps.Registry + "/" + path.Base(from.RepositoryStr()) + ":" + from.TagStr())
}

func (p *Publisher) push(ctx context.Context, tag name.Tag, img v1.Image, bill []byte) (v1.Hash, error) {
	digest, err := img.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	attached, err := attachment(img, bill)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := p.write(ctx, tag.Digest(digest.String()), img); err != nil {
		return v1.Hash{}, err
	}
	of, err := attached.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	if err := remote.Write(tag.Digest(of.String()), attached, p.options(ctx)...); err != nil {
		return v1.Hash{}, fmt.Errorf("attach the bill of materials: %w", err)
	}
	// Last, so that the bill is there when the tag can be pulled.
	return digest, remote.Tag(tag, img, p.options(ctx)...)
}

// attachment returns the bill as an artifact that refers to the image.
func attachment(img v1.Image, bill []byte) (v1.Image, error) {
	subject, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	media := types.MediaType(sbom.MediaType)
	// Registries take the media type of the configuration for the type of the artifact.
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), media)
	artifact, err = mutate.Append(artifact, mutate.Addendum{Layer: static.NewLayer(bill, media), MediaType: media})
	if err != nil {
		return nil, err
	}
	with, ok := mutate.Subject(artifact, *subject).(v1.Image)
	if !ok {
		return nil, errors.New("the artifact of the bill is not an image")
	}
	return with, nil
}

// write pushes an image by its digest and reports how far it is.
func (p *Publisher) write(ctx context.Context, to name.Reference, img v1.Image) error {
	if p.deps.Progress == nil {
		return remote.Write(to, img, p.options(ctx)...)
	}
	updates, done := make(chan v1.Update, 16), make(chan struct{})
	go func() {
		defer close(done)
		for u := range updates {
			if u.Error == nil {
				p.deps.Progress(u.Complete, u.Total)
			}
		}
	}()
	err := remote.Write(to, img, append(p.options(ctx), remote.WithProgress(updates))...)
	<-done
	return err
}

func (p *Publisher) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(p.deps.Keychain), remote.WithUserAgent("berth-images")}
}

// advice says what to do about an error of the registry; empty if there is nothing to say.
func advice(err error, tag name.Tag) string {
	answer := (*transport.Error)(nil)
	if !errors.As(err, &answer) {
		return ""
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("; log in with `docker login %s`, or set DOCKER_CONFIG to a directory with a config.json that may write there",
			cmp.Or(tag.RegistryStr(), "REGISTRY"))
	case http.StatusNotFound:
		return fmt.Sprintf("; make the repository %s first, if %s does not make one on push", tag.RepositoryStr(), tag.RegistryStr())
	default:
		return ""
	}
}
