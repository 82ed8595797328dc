package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-gpu/berth/kube/internal/sandbox/image"
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

// ImportImage imports an image into the node from an OCI layout tarball, as written by [image.WriteFile].
func (n Node) ImportImage(ctx context.Context, tarball string) error {
	img, err := image.ReadFile(tarball)
	if err != nil {
		return err
	}
	conn, err := n.dialContainerd()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	for _, d := range img.Blobs() {
		if err := writeBlob(ctx, contentapi.NewContentClient(conn), d, img.Blob(d)); err != nil {
			return fmt.Errorf("import %s into %s: %w", img.Name, n.name, err)
		}
	}
	images := imagesapi.NewImagesClient(conn)
	rec := &imagesapi.Image{Name: img.Name, Target: &types.Descriptor{MediaType: img.Target.MediaType,
		Digest: img.Target.Digest, Size: img.Target.Size}}
	_, err = images.Create(ctx, &imagesapi.CreateImageRequest{Image: rec})
	if status.Code(err) == codes.AlreadyExists {
		_, err = images.Update(ctx, &imagesapi.UpdateImageRequest{Image: rec})
	}
	if err != nil {
		return fmt.Errorf("import %s into %s: %w", img.Name, n.name, err)
	}
	return nil
}

func writeBlob(ctx context.Context, store contentapi.ContentClient, d image.Descriptor, data []byte) error {
	stream, err := store.Write(ctx)
	if err != nil {
		return err
	}
	const chunk = 1 << 20 // well below gRPC's limit of a message
	ref := "import-" + filepath.Base(d.Digest)
	// Marked as garbage collection roots, because the collector may run before the image refers to them.
	labels := map[string]string{"containerd.io/gc.root": "berth-sandbox"}
	for off := 0; ; off += chunk {
		end := min(off+chunk, len(data))
		req := &contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Ref: ref, Offset: int64(off),
			Data: data[off:end], Total: d.Size, Expected: d.Digest}
		if end == len(data) {
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
			return fmt.Errorf("write blob %s: %w", d.Digest, err)
		}
		if end == len(data) {
			return stream.CloseSend()
		}
	}
}
