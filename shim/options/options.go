// Package options is what an administrator gives together with the runtime: the path of a configuration file, or a
// configuration text, as containerd's runtimeoptions.v1.Options.
//
// They reach a shim twice. Its `start` gets those of the runtime (Save keeps them in the bundle), and each Create gets
// those of the task, or the runtime's where the task has none. A task's options may be of another runtime's type, since
// clients send runc's unasked; such are not an error, only told.
package options

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// file is the name in the bundle.
const file = "runtime-options.json"

// Runtime is the decoded options; its zero value is none.
type Runtime struct {
	ConfigPath string `json:"config_path,omitempty"`
	ConfigBody string `json:"config_body,omitempty"`
}

// Decode decodes options. ok is false when they are of a type that isn't ours; no options at all are ours, and zero.
func Decode(opts *anypb.Any) (r Runtime, ok bool, err error) {
	if opts.GetTypeUrl() == "" {
		return Runtime{}, true, nil
	}
	// The type was named cri.runtimeoptions.v1.Options, and comes with and without a host before its name.
	if !strings.HasSuffix(opts.GetTypeUrl(), "runtimeoptions.v1.Options") {
		return Runtime{}, false, nil
	}
	var o runtimeoptions.Options
	if err := proto.Unmarshal(opts.GetValue(), &o); err != nil {
		return Runtime{}, true, fmt.Errorf("decode runtime options %s: %w", opts.GetTypeUrl(), err)
	}
	return Runtime{ConfigPath: o.GetConfigPath(), ConfigBody: string(o.GetConfigBody())}, true, nil
}

// Save keeps the options in the bundle. Zero options leave no file.
func (r Runtime) Save(bundle string) error {
	if r == (Runtime{}) {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save runtime options: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(bundle, file), text, 0o600, atomicfile.Options{}); err != nil {
		return fmt.Errorf("save runtime options: %w", err)
	}
	return nil
}

// Load returns what Save kept, or zero options.
func Load(bundle string) (Runtime, error) {
	text, err := os.ReadFile(filepath.Join(bundle, file))
	if errors.Is(err, fs.ErrNotExist) {
		return Runtime{}, nil
	}
	var r Runtime
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return Runtime{}, fmt.Errorf("load runtime options: %w", err)
	}
	return r, nil
}

// Resolve returns the options of a Create: the task's where they are ours and not empty, else those in the bundle.
// ignored is the type of task options that aren't ours, to be told in the log.
func Resolve(bundle string, task *anypb.Any) (r Runtime, ignored string, err error) {
	r, ok, err := Decode(task)
	if err != nil {
		return Runtime{}, "", err
	}
	if !ok {
		ignored = task.GetTypeUrl()
	}
	if r == (Runtime{}) {
		r, err = Load(bundle)
	}
	return r, ignored, err
}
