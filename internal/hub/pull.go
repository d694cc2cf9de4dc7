package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"strobe/internal/platform"
)

// Progress is how far a Pull is. Bytes that are already there count as done.
type Progress struct {
	File        string // being fetched
	Done, Total int64  // bytes of all files
}

// Pull makes what Resolve planned local and returns the path to open: a GGUF file
// (its first part), or the folder of a checkpoint. progress may be nil; it is
// called from this goroutine. A cancelled or failed Pull leaves what it has under
// a temporary name, and the next one goes on from there. Files that have another hash
// than at an earlier Pull are logged.
func (c *Client) Pull(ctx context.Context, p *Plan, progress func(Progress)) (path string, err error) {
	if c.Offline {
		return p.Path, nil // Resolve listed what is there
	}
	c.logChanged(p)
	state := Progress{Total: p.Size()}
	report := func(n int64) {
		state.Done += n
		if progress != nil {
			progress(state)
		}
	}
	for _, f := range p.Files {
		state.File = f.Name
		if err := c.pullFile(ctx, p, f, report); err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			return "", fmt.Errorf("%s: %s: %w", p.Ref.Repo, f.Name, err)
		}
	}
	if err := c.writeRef(p.Ref, p.Commit); err != nil {
		return "", err
	}
	return p.Path, nil
}

// pullFile makes one file appear in the snapshot.
func (c *Client) pullFile(ctx context.Context, p *Plan, f File, report func(int64)) error {
	if f.Size < 0 {
		return fmt.Errorf("the server's size %d is negative", f.Size)
	}
	link := filepath.Join(c.snapshot(p.Ref.Repo, p.Commit), filepath.FromSlash(f.Name))
	if st, err := os.Stat(link); err == nil && st.Mode().IsRegular() && st.Size() == f.Size {
		report(f.Size)
		return nil
	}
	addr, err := c.resolveURL(p.Ref, p.Commit, f.Name)
	if err != nil {
		return err
	}
	d := &download{c: c, ref: p.Ref, name: f.Name, addr: addr, size: f.Size, hash: f.Hash, report: report}
	if err := d.head(ctx); err != nil {
		return err
	}
	blob, err := c.blob(p.Ref.Repo, d.hash)
	if err != nil {
		return err
	}
	lock := c.lockFile(p.Ref.Repo, d.hash)
	for _, dir := range []string{filepath.Dir(blob), filepath.Dir(lock)} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	unlock, err := platform.LockFile(ctx, lock)
	if err != nil {
		return err
	}
	defer unlock()
	// Another process may have fetched it while this one waited.
	if st, err := os.Stat(blob); err == nil && st.Mode().IsRegular() && st.Size() == d.size {
		report(d.size)
		return c.link(blob, link)
	}
	if err := d.fetch(ctx, blob+".incomplete"); err != nil {
		return err
	}
	if err := os.Rename(blob+".incomplete", blob); err != nil {
		return err
	}
	return c.link(blob, link)
}

// A download is one file on its way.
type download struct {
	c      *Client
	ref    Ref
	name   string
	addr   string
	size   int64
	hash   string
	report func(int64)
}

// head asks for size and hash and compares them with the list of files.
func (d *download) head(ctx context.Context) error {
	resp, err := d.c.retry(ctx, d.name, func() (*http.Response, error) { return d.headOnce(ctx) })
	if err != nil {
		return plainNetErr(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 400 {
		err := statusErr(d.ref, resp, d.c.Token != "")
		return errors.Unwrap(err) // the caller names the repository
	}
	etag := resp.Header.Get("X-Linked-Etag")
	if etag == "" {
		etag = resp.Header.Get("ETag")
	}
	etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
	size := resp.ContentLength
	if s := resp.Header.Get("X-Linked-Size"); s != "" {
		if size, err = strconv.ParseInt(s, 10, 64); err != nil || size < 0 {
			return fmt.Errorf("the server's size %q is not a number", clip(s))
		}
	} else if resp.StatusCode >= 300 {
		size = -1 // the length of the redirect, not of the file
	}
	switch {
	case d.hash == "" && etag == "":
		return errors.New("the server gives no hash")
	case d.hash == "":
		d.hash = etag
	case etag != "" && etag != d.hash && isHash(etag):
		return fmt.Errorf("the server's hash %s is not that of its list of files, %s", etag, clip(d.hash))
	}
	if size >= 0 && size != d.size {
		return fmt.Errorf("the server's size %d is not that of its list of files, %d", size, d.size)
	}
	return nil
}

// headOnce follows redirects inside the hub (renamed repositories) but not the
// one to the storage, whose headers say nothing about the file.
func (d *download) headOnce(ctx context.Context) (*http.Response, error) {
	client := *d.c.client()
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects || req.Response.Header.Get("X-Linked-Etag") != "" || req.URL.Host != via[0].URL.Host {
			return http.ErrUseLastResponse
		}
		return d.c.checkRedirect(req, via)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, d.addr, nil)
	if err != nil {
		return nil, err
	}
	d.c.setHeaders(req, map[string]string{"Accept-Encoding": "identity"})
	return client.Do(req)
}

var sumPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

func isHash(s string) bool { return sumPattern.MatchString(s) }

// hasher computes what the hub calls this file's hash: SHA-256 for large files,
// the git blob id for small ones; nil when it is neither.
func (d *download) hasher() hash.Hash {
	switch {
	case !isHash(d.hash):
		return nil
	case len(d.hash) == 64:
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", d.size)
	return h
}

// fetch fills the file at path, starting after what it already holds, and
// checks it. It gives up after several attempts in a row that got no further.
// Without a hash to check the result by, a part of a file is never continued: it would go unnoticed when the server
// sends other bytes than those that were asked for.
func (d *download) fetch(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &sumWriter{f: f, newSum: d.hasher, sum: d.hasher(), limit: d.size, report: d.report}
	if err := w.resume(); err != nil {
		return err
	}
	most := w.n
	for try := 1; w.n < d.size; try++ {
		err := d.attempt(ctx, w)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var fatal fatalError
		if errors.As(err, &fatal) {
			return fatal.error
		}
		if w.n > most { // a server that ignores ranges begins again and again
			try, most = 0, w.n
		}
		if try >= d.c.attempts() && w.sum == nil {
			return plainNetErr(err)
		}
		if try >= d.c.attempts() {
			return fmt.Errorf("%w; run it again to go on from byte %d of %d", plainNetErr(err), w.n, d.size)
		}
		wait := d.c.backoff(max(try, 1))
		d.c.logRetry(fmt.Sprintf("%s: at byte %d of %d", d.name, w.n, d.size), err, try, wait)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	if w.sum != nil {
		if got := hex.EncodeToString(w.sum.Sum(nil)); got != d.hash {
			f.Close()
			os.Remove(path)
			return fmt.Errorf("the hash of the content is %s, expected %s; it was removed, try again", got, d.hash)
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// fatalError ends the attempts: trying again would change nothing.
type fatalError struct{ error }

// stallLimit is how long a connection may deliver nothing.
const stallLimit = time.Minute

var errStalled = errors.New("the connection stalled")

func (d *download) attempt(ctx context.Context, w *sumWriter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	header := map[string]string{"Accept-Encoding": "identity"}
	if w.sum == nil {
		if err := w.reset(); err != nil {
			return fatalError{err}
		}
	}
	if w.n > 0 {
		header["Range"] = fmt.Sprintf("bytes=%d-", w.n)
	}
	resp, err := d.c.do(ctx, http.MethodGet, d.addr, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPartialContent && w.n > 0:
		if got := resp.Header.Get("Content-Range"); !d.continues(got, w.n, resp.ContentLength) {
			return w.restart(fmt.Errorf("the server sent the range %q for the bytes from %d on of %d", clip(got), w.n, d.size))
		}
	case resp.StatusCode == http.StatusOK:
		// A server that ignores the range sends everything again.
		if err := w.reset(); err != nil {
			return fatalError{err}
		}
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return w.restart(errors.New("the server refuses to continue the file"))
	case temporary(resp.StatusCode):
		return answered(resp)
	default:
		return fatalError{errors.Unwrap(statusErr(d.ref, resp, d.c.Token != ""))}
	}
	stall := time.AfterFunc(stallLimit, func() { cancel(errStalled) })
	defer stall.Stop()
	buf := make([]byte, 256<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			stall.Reset(stallLimit)
			if err := w.write(buf[:n]); err != nil {
				return fatalError{err}
			}
		}
		switch {
		case errors.Is(context.Cause(ctx), context.Canceled):
			return ctx.Err()
		case errors.Is(err, io.EOF) && w.n < d.size:
			return fmt.Errorf("the server ended at byte %d of %d", w.n, d.size)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && errors.Is(context.Cause(ctx), errStalled):
			return errStalled
		case err != nil:
			return err
		}
	}
}

// continues reports whether a Content-Range begins where we are, is of a file of the right size, and has as many bytes
// as the body; -1 means that the body's length is unknown.
func (d *download) continues(contentRange string, at, length int64) bool {
	var from, to int64
	var total string
	if _, err := fmt.Sscanf(contentRange, "bytes %d-%d/%s", &from, &to, &total); err != nil {
		return false
	}
	return from == at && to >= from && to < d.size && (total == "*" || total == strconv.FormatInt(d.size, 10)) &&
		(length < 0 || length == to-from+1)
}

// A sumWriter appends to a file and hashes what is in it.
type sumWriter struct {
	f      *os.File
	newSum func() hash.Hash
	sum    hash.Hash
	n      int64 // bytes in the file and in the hash
	limit  int64
	report func(int64)
}

// resume takes over what an earlier attempt left.
func (w *sumWriter) resume() error {
	st, err := w.f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > w.limit || w.sum == nil { // without a hash nothing says what it is part of
		return w.f.Truncate(0)
	}
	buf := make([]byte, 1<<20)
	for {
		n, err := w.f.Read(buf)
		if w.sum != nil {
			w.sum.Write(buf[:n])
		}
		w.n += int64(n)
		if errors.Is(err, io.EOF) {
			w.report(w.n)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *sumWriter) write(b []byte) error {
	if int64(len(b)) > w.limit-w.n {
		return fmt.Errorf("the server sends more than the %d bytes it announced", w.limit)
	}
	if _, err := w.f.Write(b); err != nil {
		return err
	}
	if w.sum != nil {
		w.sum.Write(b)
	}
	w.n += int64(len(b))
	w.report(int64(len(b)))
	return nil
}

// reset empties the file.
func (w *sumWriter) reset() error {
	if w.n == 0 {
		return nil
	}
	if err := w.f.Truncate(0); err != nil {
		return err
	}
	if _, err := w.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w.report(-w.n)
	w.n, w.sum = 0, w.newSum()
	return nil
}

// restart empties the file and passes the reason on.
func (w *sumWriter) restart(reason error) error {
	if err := w.reset(); err != nil {
		return fatalError{err}
	}
	return reason
}
