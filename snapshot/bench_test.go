package snapshot

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
)

// BenchmarkVerify reads a snapshot from the page cache, alone and while
// another core is busy, as it is beside runsc create.
func BenchmarkVerify(b *testing.B) {
	for _, busy := range []bool{false, true} {
		b.Run(fmt.Sprintf("busy=%v", busy), func(b *testing.B) {
			l := open(b, filepath.Join(b.TempDir(), "w"))
			s := take(b, l, pages(64<<8, 1))
			if busy {
				ctx, stop := context.WithCancel(b.Context())
				defer stop()
				go burn(ctx)
			}
			b.SetBytes(int64(s.Size()))
			for b.Loop() {
				if err := s.Verify(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func burn(ctx context.Context) {
	for n := 0; n%1024 != 0 || ctx.Err() == nil; n++ {
	}
}

// BenchmarkSeal has the disk write 64 MiB each time.
func BenchmarkSeal(b *testing.B) {
	l := open(b, filepath.Join(b.TempDir(), "w"))
	content := pages(64<<8, 1)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		b.StopTimer()
		in := begin(b, l, content)
		b.StartTimer()
		if _, err := in.Seal(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommit is what the journal of the file system takes, whatever the
// size of the image.
func BenchmarkCommit(b *testing.B) {
	l := open(b, filepath.Join(b.TempDir(), "w"))
	content := pages(16, 1)
	for b.Loop() {
		b.StopTimer()
		in := begin(b, l, content)
		if _, err := in.Seal(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := in.Commit(b.Context(), Manifest{}); err != nil {
			b.Fatal(err)
		}
	}
}
