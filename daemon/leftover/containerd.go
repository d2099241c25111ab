package leftover

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

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// getContainer is the one method of containerd's that is called. Its request is a message with the id as its first field.
const getContainer = "http://containerd/containerd.services.containers.v1.Containers/Get"

// askTimeout bounds one question.
const askTimeout = 5 * time.Second

// The codes of gRPC that tell something here.
const (
	codeOK       = "0"
	codeNotFound = "5"
)

// containerExists asks containerd at a socket whether it knows a container. gRPC is HTTP/2 with each message behind five
// bytes; for one call without an interesting answer Go's own client does, and the daemon stays small.
func containerExists(ctx context.Context, socket string, key node.Key) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, getContainer, bytes.NewReader(message(key.ID)))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	request.Header.Set("containerd-namespace", key.Namespace)
	client := overSocket(socket)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return false, fmt.Errorf("ask containerd at %s: %w", socket, err)
	}
	_, err = io.Copy(io.Discard, response.Body) // the trailers come after it
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return false, fmt.Errorf("ask containerd at %s: %w", socket, err)
	}
	exists, err := verdict(response)
	if err != nil {
		return false, fmt.Errorf("ask containerd at %s for %s: %w", socket, key, err)
	}
	return exists, nil
}

func message(id string) []byte {
	body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
	framed := make([]byte, 5, 5+len(body)) // not compressed
	binary.BigEndian.PutUint32(framed[1:], uint32(len(body)))
	return append(framed, body...)
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
func verdict(r *http.Response) (exists bool, err error) {
	from := r.Trailer
	if from.Get("Grpc-Status") == "" {
		from = r.Header
	}
	switch code := from.Get("Grpc-Status"); {
	case r.StatusCode != http.StatusOK:
		return false, fmt.Errorf("HTTP status %s", r.Status)
	case code == codeOK:
		return true, nil
	case code == codeNotFound:
		return false, nil
	default:
		text, _ := url.PathUnescape(from.Get("Grpc-Message"))
		return false, fmt.Errorf("status %q: %s", code, text)
	}
}
