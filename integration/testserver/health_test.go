package main

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
)

// gRPC's own client is told that the server is well.
func TestHealth(t *testing.T) {
	c := start(t)
	conn, err := grpc.NewClient(c.l.http.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := health.NewHealthClient(conn).Check(t.Context(), &health.HealthCheckRequest{})
	if err != nil || answer.GetStatus() != health.HealthCheckResponse_SERVING {
		t.Errorf("the server is %v, %v", answer, err)
	}
}
