// Package containerd asks containerd the few things that the daemon wants to know of containers.
//
// gRPC is HTTP/2 with each message behind five bytes. For calls with one small message each way Go's own client does, and the daemon stays
// small. Messages are read by their fields' numbers, which containerd's API keeps.
package containerd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrNotFound: containerd doesn't know it.
var ErrNotFound = errors.New("containerd doesn't know it")

const (
	containers = "containerd.services.containers.v1.Containers/"
	snapshots  = "containerd.services.snapshots.v1.Snapshots/"

	timeout   = 5 * time.Second // of one question
	maxAnswer = 4 << 20
)

// The codes of gRPC that tell something here.
const (
	codeOK       = "0"
	codeNotFound = "5"
)

// Container is what is read of one.
type Container struct {
	Image                    string // its name, which may be another image's by now
	Snapshotter, SnapshotKey string // of its root file system; "": it has none of containerd's
}

// Get asks for a container. ErrNotFound when there is none.
func Get(ctx context.Context, socket, namespace, id string) (c Container, err error) {
	answer, err := call(ctx, socket, namespace, containers+"Get", text(nil, 1, id))
	if err != nil {
		return c, fmt.Errorf("ask containerd at %s for %s/%s: %w", socket, namespace, id, err)
	}
	of := field(answer, 1)
	return Container{Image: string(field(of, 3)), Snapshotter: string(field(of, 6)), SnapshotKey: string(field(of, 7))}, nil
}

// Version is containerd's own, as v2.1.4.
func Version(ctx context.Context, socket string) (string, error) {
	answer, err := call(ctx, socket, "default", "containerd.services.version.v1.Version/Version", nil)
	if err != nil {
		return "", fmt.Errorf("ask containerd at %s for its version: %w", socket, err)
	}
	return string(field(answer, 1)), nil
}

// Parent is what a snapshot was made from. For a container's it is the chain ID of its image's layers: the digest of all the files in them.
func Parent(ctx context.Context, socket, namespace, snapshotter, key string) (string, error) {
	answer, err := call(ctx, socket, namespace, snapshots+"Stat", text(text(nil, 1, snapshotter), 2, key))
	if err != nil {
		return "", fmt.Errorf("ask containerd at %s for the snapshot %s: %w", socket, key, err)
	}
	return string(field(field(answer, 1), 2)), nil
}

func text(message []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, number, protowire.BytesType), s)
}

// field is a message's last one of that number that has bytes; nil where there is none.
func field(message []byte, number protowire.Number) (found []byte) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return nil
		}
		if n == number && kind == protowire.BytesType {
			found, _ = protowire.ConsumeBytes(message)
		}
		message = message[size:]
	}
	return found
}

// call makes one, and returns the answer's message.
func call(ctx context.Context, socket, namespace, method string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // not compressed
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://containerd/"+method, bytes.NewReader(append(framed, message...)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	request.Header.Set("containerd-namespace", namespace)
	client := overSocket(socket)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body) // the trailers come after it
	}
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if err := verdict(response); err != nil {
		return nil, err
	}
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return nil, fmt.Errorf("an answer of %d bytes that is no message", len(body))
	}
	return body[5:], nil
}

func overSocket(path string) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
}

// verdict reads a status that is in the trailers, or in the headers of an answer without a message.
func verdict(r *http.Response) error {
	from := r.Trailer
	if from.Get("Grpc-Status") == "" {
		from = r.Header
	}
	switch code := from.Get("Grpc-Status"); {
	case r.StatusCode != http.StatusOK:
		return fmt.Errorf("HTTP status %s", r.Status)
	case code == codeOK:
		return nil
	case code == codeNotFound:
		return ErrNotFound
	default:
		said, _ := url.PathUnescape(from.Get("Grpc-Message"))
		return fmt.Errorf("status %q: %s", code, said)
	}
}
