package main

import "net/http"

// healthy answers gRPC's question after a server's health, grpc.health.v1.Health/Check, with SERVING: a message without
// compression, of two bytes, in which field 1 is 1.
func healthy(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	if _, err := w.Write([]byte{0, 0, 0, 0, 2, 1 << 3, 1}); err == nil {
		w.Header().Set("Grpc-Status", "0")
	}
}
