package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// requests is how many one read may take: the first, and those for the rest of what broke off.
const requests = 4

func (s *Store) Get(ctx context.Context, name string, limit int64) ([]byte, store.Info, error) {
	if err := store.CheckName(name); err != nil {
		return nil, store.Info{}, err
	}
	d := &download{Store: s, op: "get", name: name, limit: limit, length: -1}
	err := d.run(ctx)
	if err != nil {
		return nil, store.Info{}, err
	}
	return d.body, d.info, nil
}

func (s *Store) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if err := store.CheckRange(name, offset, length); err != nil {
		return nil, err
	}
	d := &download{Store: s, op: "range of", name: name, offset: offset, length: length}
	if err := d.run(ctx); err != nil {
		return nil, err
	}
	return d.body, nil
}

// Stat reads one byte: a HEAD has no body, and so no word on why there is nothing.
func (s *Store) Stat(ctx context.Context, name string) (store.Info, error) {
	if err := store.CheckName(name); err != nil {
		return store.Info{}, err
	}
	d := &download{Store: s, op: "stat", name: name, length: 1}
	if err := d.run(ctx); err != nil {
		return store.Info{}, err
	}
	return d.info, nil
}

// download is one read of one object, in as many requests as it takes.
type download struct {
	*Store
	op, name       string
	offset, length int64 // what is wanted; length -1: all, at most limit
	limit          int64

	info store.Info // of the object that body is of; no name before the first answer
	body []byte
	got  int // so much of body is there
}

// brokenError is a body that ended early: its rest may be asked for.
type brokenError struct{ error }

// errReplaced: the object that the rest was to be of is no more.
var errReplaced = errors.New("the object was replaced while it was read")

func (d *download) run(ctx context.Context) error {
	if err := d.begin(ctx, d.op, d.name); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := d.once(ctx)
		broken := brokenError{}
		switch {
		case err == nil:
			return nil
		case try >= requests, !errors.As(err, &broken) && !errors.Is(err, errReplaced):
			return err
		case errors.Is(err, errReplaced):
			d.info, d.body, d.got = store.Info{}, nil, 0
		}
	}
}

// once makes one request, for all or for what is missing.
func (d *download) once(ctx context.Context) error {
	w := newWatch(ctx, d.config.Timeouts.Answer)
	defer w.stop()
	var options minio.GetObjectOptions
	first := d.offset + int64(d.got)
	resumed := d.info.Name != ""
	if resumed {
		// Only of the same object: bytes of two would be mixed.
		options.Set("If-Match", `"`+string(d.info.Version)+`"`)
		options.Set("Range", fmt.Sprintf("bytes=%d-%d", first, d.offset+int64(len(d.body))-1))
	} else if d.length >= 0 {
		options.Set("Range", fmt.Sprintf("bytes=%d-%d", first, d.offset+d.length-1))
	}
	body, info, header, err := d.core.GetObject(w.ctx, d.config.Bucket, d.key(d.name), options)
	if err != nil {
		return d.notGot(ctx, w, resumed, err)
	}
	defer body.Close()
	if resumed {
		err = d.follows(info, header, first)
	} else {
		err = d.begins(info, header)
	}
	if err != nil {
		return err
	}
	return d.fill(ctx, w, body)
}

// notGot is an answer without the object.
func (d *download) notGot(ctx context.Context, w *watch, resumed bool, err error) error {
	if ctx.Err() == nil {
		switch {
		case absent(err):
			return fmt.Errorf("%s %s: %w", d.op, d.name, store.ErrNotFound)
		case status(err) == http.StatusRequestedRangeNotSatisfiable:
			return fmt.Errorf("%s %s: %d bytes from %d: %w", d.op, d.name, d.length, d.offset, io.ErrUnexpectedEOF)
		case resumed && status(err) == http.StatusPreconditionFailed:
			return fmt.Errorf("%s %s: %w: %w", d.op, d.name, store.ErrUnavailable, errReplaced)
		}
	}
	return d.failure(ctx, w, d.op, d.name, err)
}

// begins takes what the first answer says of the object.
func (d *download) begins(info minio.ObjectInfo, header http.Header) error {
	size, length := info.Size, info.Size
	if d.length >= 0 {
		first, last, whole, err := contentRange(header)
		switch {
		case err != nil:
			return d.failure(context.Background(), nil, d.op, d.name, err)
		case first != d.offset || last >= d.offset+d.length:
			return d.failure(context.Background(), nil, d.op, d.name, fmt.Errorf("%w: it sends bytes %d to %d, where other ones were asked for", store.ErrUnavailable, first, last))
		case last < d.offset+d.length-1:
			return fmt.Errorf("%s %s: %d bytes from %d of %d: %w", d.op, d.name, d.length, d.offset, whole, io.ErrUnexpectedEOF)
		}
		size, length = whole, d.length
	} else if size < 0 {
		return d.failure(context.Background(), nil, d.op, d.name, fmt.Errorf("%w: %w", store.ErrRefused, errNoLength))
	} else if size > d.limit {
		return fmt.Errorf("%s %s: %w: %d bytes, and at most %d are taken", d.op, d.name, store.ErrTooLarge, size, d.limit)
	}
	tag := etag(info.ETag)
	if tag == "" {
		return d.failure(context.Background(), nil, d.op, d.name, errNoETag)
	}
	d.info = store.Info{Name: d.name, Size: size, Version: tag, Modified: info.LastModified.Truncate(time.Second)}
	d.body = make([]byte, length)
	return nil
}

// follows compares a later answer with the first.
func (d *download) follows(info minio.ObjectInfo, header http.Header, first int64) error {
	from, last, whole, err := contentRange(header)
	if err != nil {
		return d.failure(context.Background(), nil, d.op, d.name, err)
	}
	if from != first || last != d.offset+int64(len(d.body))-1 || whole != d.info.Size || etag(info.ETag) != d.info.Version {
		return d.failure(context.Background(), nil, d.op, d.name, fmt.Errorf("%w: the rest that it sends isn't that of the object", store.ErrUnavailable))
	}
	return nil
}

// fill reads into what is missing.
func (d *download) fill(ctx context.Context, w *watch, body io.Reader) error {
	for d.got < len(d.body) {
		w.alive(d.config.Timeouts.Stall)
		n, err := body.Read(d.body[d.got:])
		d.got += n
		if d.got == len(d.body) {
			break
		}
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return brokenError{d.failure(ctx, w, d.op, d.name, fmt.Errorf("%d bytes of %d came: %w", d.got, len(d.body), err))}
		}
	}
	io.CopyN(io.Discard, body, 1) // the end of the body, so that the connection can be used again
	return nil
}

func (e brokenError) Unwrap() error { return e.error }

// contentRange reads "bytes 0-9/1000".
func contentRange(header http.Header) (first, last, size int64, err error) {
	text := header.Get("Content-Range")
	bytes, ok := strings.CutPrefix(text, "bytes ")
	span, total, ok2 := strings.Cut(bytes, "/")
	from, to, ok3 := strings.Cut(span, "-")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	if !ok || !ok2 || !ok3 || errors.Join(err1, err2, err3) != nil || first > last || last >= size {
		return 0, 0, 0, fmt.Errorf("%w: a part was asked for, and the answer says of itself %q: the store, or a proxy before it, doesn't know ranges", store.ErrRefused, text)
	}
	return first, last, size, nil
}
