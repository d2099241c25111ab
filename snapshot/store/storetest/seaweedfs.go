package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// EnvSeaweedfs is the environment variable that says, when it is "1", that the tests with SeaweedFS are wanted, which takes
// minutes to build: once for a release. The Makefile's test-seaweedfs sets it.
const EnvSeaweedfs = "HIBERNATE_SEAWEEDFS"

// The ports of a SeaweedFS: what it is made of listens by itself.
const (
	endpointPort = iota
	plainPort    // of S3, which is there beside TLS
	s3GRPC
	filerPort
	filerGRPC
	volumePort
	volumeGRPC
	masterPort
	masterGRPC
	seaweedfsPorts
)

// Seaweedfs starts a SeaweedFS, with TLS or without, where EnvSeaweedfs wants it: all of its parts in one process, which keeps
// about 1 GB. The test is skipped elsewhere.
func Seaweedfs(t testing.TB, withTLS bool) *Server {
	t.Helper()
	if os.Getenv(EnvSeaweedfs) != "1" {
		t.Skip("needs SeaweedFS: make test-seaweedfs")
	}
	s := newServer(t, "seaweedfs", "weed", withTLS)
	s.data = filepath.Join(s.dir, "data")
	if err := os.Mkdir(s.data, 0o700); err != nil {
		t.Fatal(err)
	}
	type keys struct {
		Access string `json:"accessKey"`
		Secret string `json:"secretKey"`
	}
	type identity struct {
		Name        string   `json:"name"`
		Credentials []keys   `json:"credentials"`
		Actions     []string `json:"actions"`
	}
	who, err := json.Marshal(map[string][]identity{"identities": {{"test", []keys{{s.Access, s.Secret}}, []string{"Admin", "Read", "List", "Tagging", "Write"}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, s.identities(), string(who))
	s.arguments, s.makeBucket, s.cleanup = seaweedfsArguments, seaweedfsBucket, removeSockets
	return s.serve(t, seaweedfsPorts)
}

func (s *Server) identities() string { return filepath.Join(s.dir, "identities.json") }

// port is the number of one of the server's ports.
func (s *Server) port(i int) string {
	_, port, _ := net.SplitHostPort(s.ports[i])
	return port
}

func seaweedfsArguments(s *Server) []string {
	args := []string{
		"-logtostderr=true", "server", "-dir=" + s.data, "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
		"-master.telemetry=false", // it is on by default
		// Each bucket takes seven volumes.
		"-master.volumeSizeLimitMB=64", "-volume.max=300", "-master.port=" + s.port(masterPort), "-master.port.grpc=" + s.port(masterGRPC),
		"-volume.port=" + s.port(volumePort), "-volume.port.grpc=" + s.port(volumeGRPC),
		"-filer", "-filer.port=" + s.port(filerPort), "-filer.port.grpc=" + s.port(filerGRPC), "-filer.localSocket=" + filepath.Join(s.dir, "f"),
		"-s3", "-s3.port.grpc=" + s.port(s3GRPC), "-s3.localSocket=" + filepath.Join(s.dir, "s"), "-s3.port.iceberg=0", "-s3.port.lance=0",
		"-s3.config=" + s.identities(), "-s3.allowBackslashInKey=true", // else it takes one for a slash
	}
	if s.CA == "" {
		return append(args, "-s3.port="+s.port(endpointPort))
	}
	return append(args, "-s3.port="+s.port(plainPort), "-s3.port.https="+s.port(endpointPort), "-s3.cert.file="+s.cert, "-s3.key.file="+s.key)
}

// seaweedfsBucket makes a bucket. Its parts find each other only after a while.
func seaweedfsBucket(s *Server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyIn)
	defer cancel()
	client, err := minio.New(s.ports[endpointPort], &minio.Options{
		Creds: credentials.NewStaticV4(s.Access, s.Secret, ""), Secure: s.CA != "", Region: "us-east-1", Transport: insecure(),
	})
	if err != nil {
		return err
	}
	for {
		err := client.MakeBucket(ctx, name, minio.MakeBucketOptions{})
		if err == nil || minio.ToErrorResponse(err).StatusCode < http.StatusInternalServerError && minio.ToErrorResponse(err).StatusCode != 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// removeSockets removes what SeaweedFS makes in /tmp, whatever it is told.
func removeSockets(s *Server) {
	for part, port := range map[string]int{"master": masterGRPC, "volume": volumeGRPC, "filer": filerGRPC, "s3": s3GRPC} {
		_ = os.Remove(fmt.Sprintf("/tmp/seaweedfs-%s-grpc-%s.sock", part, s.port(port)))
	}
}
