module github.com/hibernate-runtime/hibernate/tools/protoc

go 1.26.8

tool (
	github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	github.com/containerd/ttrpc v1.2.9 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
