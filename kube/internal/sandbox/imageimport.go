package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-gpu/berth/hack/images/image"
)

// criNamespace is containerd's namespace for the kubelet.
const criNamespace = "k8s.io"

// ContainerdSocket is the outside path of the node's containerd socket. It leads through /proc/PID/root, because the
// path of a socket is limited to 107 bytes and a sandbox's directory can be long.
func (n Node) ContainerdSocket() string { return n.Root() + containerdSocket }

func (n Node) dialContainerd() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+n.ContainerdSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd of %s: %w", n.name, err)
	}
	return conn, nil
}

// ImportImage imports an image into the node.
func (n Node) ImportImage(ctx context.Context, img image.Named) error {
	if err := n.importImage(ctx, img); err != nil {
		return fmt.Errorf("import %s into %s: %w", img.Name, n.name, err)
	}
	return nil
}

func (n Node) importImage(ctx context.Context, img image.Named) error {
	blobs, err := blobsOf(img.Image)
	if err != nil {
		return err
	}
	conn, err := n.dialContainerd()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	for _, b := range blobs {
		if err := writeBlob(ctx, contentapi.NewContentClient(conn), b); err != nil {
			return fmt.Errorf("write blob %s: %w", b.Digest, err)
		}
	}
	target := blobs[len(blobs)-1]
	images := imagesapi.NewImagesClient(conn)
	rec := &imagesapi.Image{Name: img.Name, Target: &types.Descriptor{MediaType: string(target.MediaType),
		Digest: target.Digest.String(), Size: target.Size}}
	_, err = images.Create(ctx, &imagesapi.CreateImageRequest{Image: rec})
	if status.Code(err) == codes.AlreadyExists {
		_, err = images.Update(ctx, &imagesapi.UpdateImageRequest{Image: rec})
	}
	return err
}

// blob is a part of an image.
type blob struct {
	v1.Descriptor
	open func() (io.ReadCloser, error)
}

// blobsOf returns the parts of an image, each after those that it refers to: the manifest is the last.
func blobsOf(img v1.Image) ([]blob, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	configuration, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	self, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	blobs := []blob{{Descriptor: manifest.Config, open: opener(configuration)}}
	for i, layer := range layers {
		blobs = append(blobs, blob{Descriptor: manifest.Layers[i], open: layer.Compressed})
	}
	return append(blobs, blob{Descriptor: *self, open: opener(raw)}), nil
}

func opener(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// writeBlob writes a blob into the store, which checks the digest.
func writeBlob(ctx context.Context, store contentapi.ContentClient, b blob) error {
	source, err := b.open()
	if err != nil {
		return err
	}
	defer source.Close()
	stream, err := store.Write(ctx)
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20) // well below gRPC's limit of a message
	// Marked as garbage collection roots, because the collector may run before the image refers to them.
	labels := map[string]string{"containerd.io/gc.root": "berth-sandbox"}
	for offset := int64(0); ; {
		n, err := io.ReadFull(source, buffer[:min(int64(len(buffer)), b.Size-offset)])
		if err != nil {
			return err
		}
		req := &contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Ref: "import-" + b.Digest.Hex, Offset: offset,
			Data: buffer[:n], Total: b.Size, Expected: b.Digest.String()}
		offset += int64(n)
		last := offset == b.Size
		if last {
			req.Action, req.Labels = contentapi.WriteAction_COMMIT, labels
		}
		// A failed Send returns only EOF; Recv returns the reason.
		if err = stream.Send(req); err == nil || errors.Is(err, io.EOF) {
			_, err = stream.Recv()
		}
		if status.Code(err) == codes.AlreadyExists {
			return nil
		}
		if err != nil {
			return err
		}
		if last {
			return stream.CloseSend()
		}
	}
}
