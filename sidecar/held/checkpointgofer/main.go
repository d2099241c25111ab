// Checkpointgofer, as tests use it: the disk is as slow and as bad as files in the workload's directory say. A read of
// pages.img
//
//	hold      waits while this file is there, in the last quarter
//	hold-all  waits while this file is there
//	slow      takes some milliseconds while this file is there
//	fail      fails while this file is there, in the last quarter
package main

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hibernate-runtime/hibernate/sidecar/gofer"
	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

func main() {
	gofer.Main(func(directory string) pages.Source {
		return place{Source: pages.Directory(directory), image: directory, control: filepath.Join(directory, "../..")}
	})
}

type place struct {
	pages.Source
	image, control string
}

func (p place) Open(name string) (pages.Blob, error) {
	b, err := p.Source.Open(name)
	if err != nil || name != "pages.img" {
		return b, err
	}
	st, err := os.Stat(filepath.Join(p.image, name))
	if err != nil {
		return nil, err
	}
	return blob{Blob: b, control: p.control, from: st.Size() / 4 * 3}, nil
}

type blob struct {
	pages.Blob
	control string
	from    int64
}

func (b blob) ReadAt(p []byte, off int64) (int, error) {
	for b.told("hold-all") {
		time.Sleep(2 * time.Millisecond)
	}
	if b.told("slow") {
		time.Sleep(7 * time.Millisecond)
	}
	if off >= b.from {
		for b.told("hold") {
			time.Sleep(2 * time.Millisecond)
		}
		if b.told("fail") {
			return 0, syscall.EIO
		}
	}
	return b.Blob.ReadAt(p, off)
}

func (b blob) told(what string) bool {
	_, err := os.Stat(filepath.Join(b.control, what))
	return err == nil
}
