package plugin

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
)

// taskV2 is the name of the task service of containerd 1.x.
const taskV2 = "containerd.task.v2.Task"

// registerTaskV2 serves task under its older name. The messages of v2 are the same, field by field, as a test checks:
// so those of v3 decode them, and the types of v2 needn't be linked.
func registerTaskV2(server *ttrpc.Server, task taskapi.TTRPCTaskService) {
	server.RegisterService(taskV2, &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State":      method(task.State),
		"Create":     method(task.Create),
		"Start":      method(task.Start),
		"Delete":     method(task.Delete),
		"Pids":       method(task.Pids),
		"Pause":      method(task.Pause),
		"Resume":     method(task.Resume),
		"Checkpoint": method(task.Checkpoint),
		"Kill":       method(task.Kill),
		"Exec":       method(task.Exec),
		"ResizePty":  method(task.ResizePty),
		"CloseIO":    method(task.CloseIO),
		"Update":     method(task.Update),
		"Wait":       method(task.Wait),
		"Stats":      method(task.Stats),
		"Connect":    method(task.Connect),
		"Shutdown":   method(task.Shutdown),
	}})
}

// method makes a ttrpc method of a typed one.
func method[Request, Response any](call func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		req := new(Request)
		if err := unmarshal(req); err != nil {
			return nil, err
		}
		return call(ctx, req)
	}
}
