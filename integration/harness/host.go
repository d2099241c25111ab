package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// countHost lists what a world must never change: the machine outside. Other worlds live there, too, and are left out.
func countHost(ctx context.Context) ([]string, error) {
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
		{"ip", "-brief", "link"}, {"ip", "rule"}, {"nft", "--stateless", "list", "ruleset"},
	} {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
		}
		for _, l := range normalise(string(out)) {
			all = append(all, argv[0]+" "+l)
		}
	}
	return all, nil
}
