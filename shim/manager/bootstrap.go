package manager

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/defaults"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hibernate-runtime/hibernate/shim/options"
)

// maxInput bounds what is read from containerd.
const maxInput = 10 << 20

// protocol is how containerd and `start` talk.
type protocol int

const (
	// protocolAddress: options or nothing on stdin, the bare address and task v2 as the answer. containerd 1.6.
	protocolAddress protocol = iota
	// protocolJSON: options or nothing on stdin, JSON and task v2 as the answer. containerd 1.7 to 2.2.
	protocolJSON
	// protocolBootstrap: BootstrapParams on stdin, BootstrapResult and task v3 as the answer. containerd 2.3 and on.
	protocolBootstrap
)

// request is a `start`.
type request struct {
	protocol     protocol
	namespace    string
	id           string
	debug        bool
	grpcAddress  string
	ttrpcAddress string // "": as the environment says
	socketDir    string
	options      options.Runtime
}

// legacyProtocol is how to answer a containerd that sends no BootstrapParams. Each version from 1.7 on says in the
// environment which version of the shim it takes at most, and decodes JSON; one that says nothing is 1.6, which takes all
// of the output for the address. A wrong guess does no harm: all later versions take a bare address, too.
func legacyProtocol(maxVersion string) protocol {
	if maxVersion == "" {
		return protocolAddress
	}
	return protocolJSON
}

// readRequest decodes stdin. Options in the older form can happen to decode as BootstrapParams, so those count only
// when they name the container that the arguments name.
func readRequest(inv invocation, stdin io.Reader) (request, error) {
	r := request{
		protocol: legacyProtocol(inv.maxVersion), namespace: inv.namespace, id: inv.id, debug: inv.debug, grpcAddress: inv.address,
		socketDir: filepath.Join(defaults.DefaultStateDir, "s"),
	}
	input, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	switch {
	case err != nil:
		return r, fmt.Errorf("read stdin: %w", err)
	case len(input) > maxInput:
		return r, fmt.Errorf("read stdin: more than %d bytes", maxInput)
	}
	var params bootstrap.BootstrapParams
	if proto.Unmarshal(input, &params) == nil && params.InstanceID == inv.id && params.Namespace == inv.namespace {
		return r, r.fromBootstrap(&params)
	}
	var opts anypb.Any
	if err := proto.Unmarshal(input, &opts); err != nil {
		return r, errors.New("stdin is neither BootstrapParams of this container nor options")
	}
	return r, r.addOptions(&opts)
}

func (r *request) fromBootstrap(p *bootstrap.BootstrapParams) error {
	r.protocol = protocolBootstrap
	r.debug = r.debug || p.LogLevel <= bootstrap.LogLevel_LOG_LEVEL_DEBUG
	r.grpcAddress = cmp.Or(p.ContainerdGrpcAddress, r.grpcAddress)
	r.ttrpcAddress = p.ContainerdTtrpcAddress
	r.socketDir = cmp.Or(p.GetSocketDir(), r.socketDir)
	for _, e := range p.Extensions {
		if err := r.addOptions(e.GetValue()); err != nil {
			return err
		}
	}
	return nil
}

// addOptions takes runtime options, and passes over those of another type: a Create brings them again, and tells.
func (r *request) addOptions(opts *anypb.Any) error {
	o, ours, err := options.Decode(opts)
	if ours && o != (options.Runtime{}) {
		r.options = o
	}
	return err
}

// reply encodes the answer.
func (r *request) reply(address string) ([]byte, error) {
	switch r.protocol {
	case protocolBootstrap:
		return proto.Marshal(&bootstrap.BootstrapResult{Version: 3, Address: address, Protocol: "ttrpc"})
	case protocolAddress:
		return []byte(address), nil
	}
	return json.Marshal(struct {
		Version  int    `json:"version"`
		Address  string `json:"address"`
		Protocol string `json:"protocol"`
	}{2, address, "ttrpc"})
}
