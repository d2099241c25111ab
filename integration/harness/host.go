package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// countHost lists what of the world shows on the machine outside: nothing ever should. What others do there at the same
// time is no matter; the world is known by its name, its directory, its bridges and its subnets.
func (w *World) countHost(ctx context.Context) ([]string, error) {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	var all []string
	mounts, err := mountPoints(os.Getpid())
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		all = append(all, "mount "+m)
	}
	for _, argv := range [][]string{
		{"ip", "-brief", "address"}, {"ip", "rule"}, {"ip", "route", "show", "table", "all"}, {"nft", "--stateless", "list", "ruleset"},
	} {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
		}
		for _, l := range normalise(string(out)) {
			all = append(all, argv[0]+" "+l)
		}
	}
	ours := []string{w.Name, "cni0", "plain0", "client0", w.subnets.pods + ".", w.subnets.client + ".", w.subnets.plain + "."}
	return slices.DeleteFunc(all, func(line string) bool {
		return !slices.ContainsFunc(ours, func(o string) bool { return strings.Contains(line, o) })
	}), nil
}
