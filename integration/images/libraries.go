package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"strings"
)

// checkLibraries fails when a library that one of the tree's programs needs, directly or through another, is missing:
// an omitted package was wanted after all.
func checkLibraries(t tree) error {
	libraries := map[string]string{} // soname → path
	for name := range t {
		if strings.HasPrefix(name, "usr/lib/") && strings.Contains(name, ".so") {
			libraries[path.Base(name)] = name
		}
	}
	seen := map[string]bool{}
	for name, n := range t {
		if dir := path.Dir(name); dir != "usr/bin" && dir != "usr/sbin" || len(n.data) == 0 {
			continue
		}
		if err := checkNeeded(t, name, libraries, seen); err != nil {
			return err
		}
	}
	return nil
}

func checkNeeded(t tree, name string, libraries map[string]string, seen map[string]bool) error {
	if seen[name] {
		return nil
	}
	seen[name] = true
	for _, soname := range needed(t, name) {
		at, ok := libraries[soname]
		if !ok {
			return fmt.Errorf("/%s needs %s, which is in no package of the image", name, soname)
		}
		if err := checkNeeded(t, at, libraries, seen); err != nil {
			return err
		}
	}
	return nil
}

// needed are the libraries that a file asks for; none when it is not an ELF file.
func needed(t tree, name string) []string {
	n := t[name]
	if n != nil && n.header.Linkname != "" {
		target := n.header.Linkname
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		n = t[place(target)]
	}
	if n == nil {
		return nil
	}
	f, err := elf.NewFile(bytes.NewReader(n.data))
	if err != nil {
		return nil
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return nil
	}
	return libs
}
