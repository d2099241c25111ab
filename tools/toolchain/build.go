package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A first build downloads and compiles everything; nothing takes nearly this long.
const buildDeadline = 30 * time.Minute

var buildFlags = []string{"-trimpath", "-buildvcs=false", "-mod=readonly"}

// build compiles the tool's programs, static and stripped, into dir.
func build(ctx context.Context, t tool, dir string, jobs int) error {
	ctx, cancel := context.WithTimeout(ctx, buildDeadline)
	defer cancel()
	ldflags, err := linkerFlags(t)
	if err != nil {
		return err
	}
	fmt.Printf("building %s (once for this version)\n", t.name)
	verb := []string{"build"}
	if t.tests {
		verb = []string{"test", "-c"}
	}
	args := append(append(verb, "-p="+strconv.Itoa(jobs)), buildFlags...)
	args = append(args, "-ldflags="+ldflags, "-o", dir+string(filepath.Separator))
	if t.own {
		args = append(args, ".")
	} else {
		args = append(append(args, "-modfile="+t.modfile()), t.packages...)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = t.dir()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", verb[0], err)
	}
	return nil
}

func linkerFlags(t tool) (string, error) {
	flags := strings.TrimSpace("-s -w " + t.ldflags)
	if t.stamp == "" {
		return flags, nil
	}
	b, err := os.ReadFile(t.modfile())
	if err != nil {
		return "", err
	}
	version, err := requiredVersion(string(b), t.module)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.modfile(), err)
	}
	return flags + " -X " + t.stamp + "=go-" + strings.TrimPrefix(version, "v0.0.0-"), nil
}

// requiredVersion finds the version at which a go.mod requires a module.
func requiredVersion(gomod, module string) (string, error) {
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("module %s is not required", module)
}
