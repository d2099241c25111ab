package sandbox

import (
	"os/exec"
	"syscall"
	"testing"
)

// stray starts a process with the arguments that a command of runsc, or what it has started, would have.
func stray(t *testing.T, root, id string) *exec.Cmd {
	t.Helper()
	return waiting(t, exec.Command("sh", "-c", "read line", "runsc", "--root="+root, "create", id))
}

// straySidecar starts one with the arguments of a sidecar, which hold no id.
func straySidecar(t *testing.T, root string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read line", "--root="+root, "checkpointgofer")
	cmd.Args[0] = "runsc-checkpointgofer"
	return waiting(t, cmd)
}

func waiting(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if _, err := cmd.StdinPipe(); err != nil { // it reads for as long as this is open
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestOnlyCommandsOfThisContainerAreKilled(t *testing.T) {
	root := t.TempDir()
	ours := []*exec.Cmd{stray(t, root, "web"), stray(t, root, "web"), straySidecar(t, root)}
	others := []*exec.Cmd{stray(t, root, "web-2"), stray(t, root+"2", "web"), straySidecar(t, root+"2")}
	if err := killCommands(root, "web"); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range ours {
		_ = cmd.Wait()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
			t.Errorf("%v ended with %v", cmd.Args, cmd.ProcessState)
		}
	}
	for _, cmd := range others {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%v was killed: %v", cmd.Args, err)
		}
		_ = cmd.Wait()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGTERM {
			t.Errorf("%v ended with %v, not by this test", cmd.Args, cmd.ProcessState)
		}
	}
}
