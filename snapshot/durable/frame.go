package durable

import (
	"fmt"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

const (
	pageSize   = 4096
	framePages = 64
	packFrames = 128
	frameSize  = framePages * pageSize
	packPages  = packFrames * framePages

	// maxFrame is what a frame takes stored at most: its kind, its bytes, its tag.
	maxFrame = 1 + frameSize + tagLength
	minFrame = 1 + 1 + tagLength
)

// Kinds of frames: the first byte of the plaintext.
const (
	rawFrame  = 0
	zstdFrame = 1
	hashFrame = 2
	// 3: XOR with other pages, reserved
)

// codec compresses frames. Its methods may be called from many goroutines.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder // of what is as long as its destination says, at most
	man *zstd.Decoder // of manifests
}

func newCodec() (*codec, error) {
	n := runtime.GOMAXPROCS(0)
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(n),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(frameSize))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(n), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(frameSize))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	man, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxManifest))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &codec{enc: enc, dec: dec, man: man}, nil
}

// encode appends the plaintext of a frame with the pages.
func (c *codec) encode(dst, pages []byte) []byte {
	n := len(dst)
	dst = c.enc.EncodeAll(pages, append(dst, zstdFrame))
	if (len(dst)-n-1)*100 > len(pages)*94 {
		dst = append(append(dst[:n], rawFrame), pages...)
	}
	return dst
}

// decode gives the pages of a frame's plaintext, which are count: in buf, or in plain itself.
func (c *codec) decode(buf *[frameSize]byte, plain []byte, count int) ([]byte, error) {
	if len(plain) == 0 {
		return nil, fmt.Errorf("it is empty")
	}
	want := count * pageSize
	if want < 0 || want > frameSize {
		return nil, fmt.Errorf("it has %d pages", count)
	}
	pages := plain[1:]
	switch plain[0] {
	case rawFrame:
	case zstdFrame:
		var err error
		if pages, err = c.dec.DecodeAll(pages, buf[:0:want]); err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	default:
		return nil, fmt.Errorf("it is of kind %d, which this program doesn't know: upgrade it", plain[0])
	}
	if len(pages) != want {
		return nil, fmt.Errorf("it has %d bytes, want %d", len(pages), want)
	}
	return pages, nil
}
