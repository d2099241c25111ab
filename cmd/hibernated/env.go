package main

import (
	"slices"
	"strings"
)

// childEnv is an environment for programs that have nothing to do with the store: without the credentials that hibernated may have been given
// (store-credentials = "env"). The drainer may run for a day.
func childEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "AWS_") })
}
