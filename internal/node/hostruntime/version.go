package hostruntime

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	// patience bounds the request.
	patience      = 5 * time.Second
	versionMethod = "/runtime.v1.RuntimeService/Version"
	// The fields of its answer.
	fieldName, fieldVersion = 2, 3
)

// Version asks a runtime for its name and version through its CRI (runtime.v1). The socket is a path of this process.
func Version(ctx context.Context, socket string) (name, version string, err error) {
	if _, err := os.Stat(socket); err != nil {
		return "", "", fmt.Errorf("ask the runtime for its version: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", "", fmt.Errorf("ask the runtime for its version: %s: %w", socket, err)
	}
	defer conn.Close()
	answer := &emptypb.Empty{}
	if err := conn.Invoke(ctx, versionMethod, &emptypb.Empty{}, answer); err != nil {
		return "", "", fmt.Errorf("ask the runtime for its version: %s: %w", socket, err)
	}
	// A message type without fields keeps those of the answer as unknown ones.
	if name, version = parseVersion(answer.ProtoReflect().GetUnknown()); version == "" {
		return "", "", fmt.Errorf("ask the runtime for its version: %s: the answer contains no version", socket)
	}
	return name, version, nil
}

// parseVersion reads the two fields of the answer.
func parseVersion(rest []byte) (name, version string) {
	for len(rest) > 0 {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return name, version
		}
		rest = rest[n:]
		if kind == protowire.BytesType {
			text, length := protowire.ConsumeString(rest)
			switch {
			case length < 0:
				return name, version
			case field == fieldName:
				name = text
			case field == fieldVersion:
				version = text
			}
		}
		if n = protowire.ConsumeFieldValue(field, kind, rest); n < 0 {
			return name, version
		}
		rest = rest[n:]
	}
	return name, version
}
