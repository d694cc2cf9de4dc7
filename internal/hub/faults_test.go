package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestRemoveKeepsShared: content that another commit has stays when a model is removed, whether files of snapshots are
// links or copies of content; content that no commit has goes.
func TestRemoveKeepsShared(t *testing.T) {
	for _, links := range []string{"symbolic", "hard"} {
		t.Run(links, func(t *testing.T) {
			c := &Client{Cache: t.TempDir()}
			if links == "hard" {
				c.symlink = func(string, string) error { return errors.New("not on this system") }
			}
			const repo = "owner/repo"
			older, newer := testCommit, strings.Repeat("f", 40)
			blobs := filepath.Join(c.repoDir(repo), "blobs")
			if err := os.MkdirAll(blobs, 0o777); err != nil {
				t.Fatal(err)
			}
			put := func(commit, name, content string) string {
				blob := filepath.Join(blobs, sha([]byte(content)))
				path := filepath.Join(c.snapshot(repo, commit), name)
				if _, err := os.Stat(blob); errors.Is(err, fs.ErrNotExist) {
					if err := os.WriteFile(blob, []byte(content), 0o666); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.link(blob, path); err != nil {
					t.Fatal(err)
				}
				return path
			}
			put(older, "m-Q4_K_M.gguf", "same in both")
			put(older, "m-Q8_0.gguf", "changed later")
			same := put(newer, "m-Q4_K_M.gguf", "same in both")
			changed := put(newer, "m-Q8_0.gguf", "changed")
			list, err := c.List()
			if err != nil || len(list) != 4 {
				t.Fatalf("%d models, error %v", len(list), err)
			}
			for _, x := range list {
				if x.Commit == older {
					if err := c.Remove(x); err != nil {
						t.Fatal(err)
					}
				}
			}
			checkFile(t, same, []byte("same in both"))
			checkFile(t, changed, []byte("changed"))
			if left, _ := os.ReadDir(blobs); len(left) != 2 {
				t.Errorf("%d files of content are left, want the 2 of the other commit", len(left))
			}
			if list, err := c.List(); err != nil || len(list) != 2 || list[0].Commit != newer {
				t.Errorf("left in the list: %+v, error %v", list, err)
			}
		})
	}
}

// roundTrip is a hub inside of the process.
type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// slowBody gives its pieces with a pause before each but the first; then it ends, or hangs until ctx is done.
type slowBody struct {
	ctx    context.Context
	pieces [][]byte
	pause  time.Duration
	given  int
	hangs  bool
}

func (b *slowBody) Close() error { return nil }

func (b *slowBody) Read(p []byte) (int, error) {
	if b.given == len(b.pieces) && !b.hangs {
		return 0, io.EOF
	}
	if b.given == len(b.pieces) {
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	if b.given > 0 && sleep(b.ctx, b.pause) != nil {
		return 0, b.ctx.Err()
	}
	b.given++
	return copy(p, b.pieces[b.given-1]), nil
}

// TestStall: a download that delivers nothing for a minute is asked for again from where it is; a slow one is not cut.
func TestStall(t *testing.T) {
	data := content("m.gguf", 10_000)
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var ranges, lines []string
			answer := func(r *http.Request) *http.Response {
				resp := &http.Response{StatusCode: 200, Header: http.Header{"Etag": {`"` + sha(data) + `"`}}, Request: r,
					ContentLength: int64(len(data)), Body: http.NoBody}
				if r.Method == http.MethodHead {
					return resp
				}
				ranges = append(ranges, r.Header.Get("Range"))
				from := 0
				if fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); from > 0 {
					resp.StatusCode, resp.ContentLength = http.StatusPartialContent, int64(len(data)-from)
					resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
				}
				body := &slowBody{ctx: r.Context(), pieces: slices.Collect(slices.Chunk(data[from:], 1000))}
				if body.pause = stallLimit - time.Second; !slow {
					body.pause, body.hangs = 0, len(body.pieces) > 3
					body.pieces = body.pieces[:min(3, len(body.pieces))]
				}
				resp.Body = body
				return resp
			}
			c := &Client{Endpoint: "http://hub.test", Cache: t.TempDir(), HTTP: &http.Client{Transport: roundTrip(answer)},
				Log: func(s string) { lines = append(lines, s) }}
			p := &Plan{Ref: Ref{"owner/repo", testCommit, ""}, Commit: testCommit,
				Files: []File{{"m.gguf", int64(len(data)), sha(data)}},
				Path:  filepath.Join(c.snapshot("owner/repo", testCommit), "m.gguf")}
			path, err := c.Pull(t.Context(), p, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkFile(t, path, data)
			want, says := []string{"", "bytes=3000-", "bytes=6000-", "bytes=9000-"}, 3
			if slow {
				want, says = []string{""}, 0
			}
			if !slices.Equal(ranges, want) {
				t.Errorf("slow: %t; asked for the ranges %q, want %q", slow, ranges, want)
			}
			for _, l := range lines {
				if !strings.Contains(l, "m.gguf") || !strings.Contains(l, "the connection stalled; attempt") {
					t.Errorf("the log says %q", l)
				}
			}
			if len(lines) != says {
				t.Errorf("slow: %t; %d lines in the log, want %d: %q", slow, len(lines), says, lines)
			}
		})
	}
}

// TestWrongRange: a server that answers a range with other bytes is not believed: the file is begun anew, and without a
// hash that would show it no range is asked for.
func TestWrongRange(t *testing.T) {
	data := content("m.gguf", 10_000)
	whole := func(w http.ResponseWriter) { w.Write(data) }
	partial := func(head string, body []byte) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", head)
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(body)
		}
	}
	for _, c := range []struct {
		name   string
		etag   string
		answer func(w http.ResponseWriter) // to a range
		ranges int                         // that are asked for
		want   string                      // error
	}{
		{"right", sha(data), partial("bytes 4000-9999/10000", data[4000:]), 1, ""},
		{"right, total unknown", sha(data), partial("bytes 4000-9999/*", data[4000:]), 1, ""},
		{"right, without a hash", "version-7", partial("bytes 4000-9999/10000", data[4000:]), 0, ""},
		{"other bytes without a hash", "version-7", partial("bytes 4000-9999/10000", data[:6000]), 0, ""},
		{"other bytes", sha(data), partial("bytes 4000-9999/10000", data[:6000]), 1, "the hash of the content is"},
		{"another start", sha(data), partial("bytes 0-9999/10000", data), 1, ""},
		{"a start that begins alike", sha(data), partial("bytes 40000-9999/10000", data[4000:]), 1, ""},
		{"a file of another size", sha(data), partial("bytes 4000-9999/10001", data[4000:]), 1, ""},
		{"an end after the file", sha(data),
			partial("bytes 4000-10000/10000", append(data[4000:len(data):len(data)], 1)), 1, ""},
		{"fewer bytes than the range", sha(data), partial("bytes 4000-9999/10000", data[4000:9000]), 1, ""},
		{"no range in the header", sha(data), partial("", data[4000:]), 1, ""},
		{"everything", sha(data), whole, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			ranges, got := 0, 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				w.Header().Set("ETag", `"`+c.etag+`"`)
				if r.Header.Get("Range") != "" {
					ranges++
				}
				switch {
				case r.Method == http.MethodHead:
					w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				case r.Header.Get("Range") != "" && ranges == 1:
					c.answer(w)
				case got == 0:
					got++
					w.Header().Set("Content-Length", fmt.Sprint(len(data)))
					w.Write(data[:4000])
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				default:
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
				}
			}))
			defer srv.Close()
			cl := &Client{Endpoint: srv.URL, Cache: t.TempDir(), Attempts: 3, Backoff: time.Millisecond}
			p := &Plan{Ref: Ref{"owner/repo", testCommit, ""}, Commit: testCommit,
				Files: []File{{"m.gguf", int64(len(data)), ""}},
				Path:  filepath.Join(cl.snapshot("owner/repo", testCommit), "m.gguf")}
			path, err := cl.Pull(t.Context(), p, nil)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error is %v, want %q", err, c.want)
				}
			} else if err != nil {
				t.Error(err)
			} else {
				checkFile(t, path, data)
			}
			if ranges != c.ranges {
				t.Errorf("%d ranges were asked for, want %d", ranges, c.ranges)
			}
		})
	}
}

// TestWithoutHash: what an earlier pull left of a file without a hash is not continued, and a server that never sends
// all of it is given up after the attempts that were asked for.
func TestWithoutHash(t *testing.T) {
	data := content("m.gguf", 10_000)
	asked, cuts := 0, []int{5000, 2000, 5000, 3000, 5000, 1}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"version-7"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if r.Method == http.MethodHead {
			return
		}
		if r.Header.Get("Range") != "" {
			t.Errorf("the range %s is asked for", r.Header.Get("Range"))
		}
		if asked++; asked > len(cuts) {
			w.Write(data)
			return
		}
		w.Write(data[:cuts[asked-1]])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	c := &Client{Endpoint: srv.URL, Cache: t.TempDir(), Attempts: 3, Backoff: time.Millisecond}
	p := &Plan{Ref: Ref{"owner/repo", testCommit, ""}, Commit: testCommit,
		Files: []File{{"m.gguf", int64(len(data)), ""}}, Path: filepath.Join(c.snapshot("owner/repo", testCommit), "m.gguf")}
	// The first attempt gets further than nothing, the next three no further than it.
	if _, err := c.Pull(t.Context(), p, nil); err == nil || strings.Contains(err.Error(), "go on from byte") ||
		asked != 4 {
		t.Errorf("after %d attempts, want 4: error %v", asked, err)
	}
	blob, _ := c.blob("owner/repo", "version-7")
	if err := os.WriteFile(blob+".incomplete", bytes.Repeat([]byte("x"), 10_000), 0o666); err != nil {
		t.Fatal(err)
	}
	path, err := c.Pull(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, path, data)
}

// TestTokenStays: neither a redirect to another host or port nor a list that goes on there gets the token; the
// endpoint itself does, redirected or not.
func TestTokenStays(t *testing.T) {
	files := modelFiles("a.gguf")
	h := newHub(t, files)
	// The hub itself, under another port of the same host: it knows the files and must not see the token.
	seen := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen++
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("%s %s got the token", r.Method, r.URL.Path)
		}
		if cursor := r.URL.Query().Get("cursor"); strings.Contains(r.URL.Path, "/tree/") && cursor == "" {
			h.hub.URL = "http://" + r.Host // the list goes on here
		}
		h.serveHub(w, r)
	}))
	defer other.Close()
	withToken := 0
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+testToken {
			withToken++
		}
		if r.URL.Query().Get("again") == "" { // once to itself
			http.Redirect(w, r, r.URL.Path+"?again=1&"+r.URL.RawQuery, http.StatusTemporaryRedirect)
			return
		}
		http.Redirect(w, r, other.URL+r.URL.Path+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	}))
	defer front.Close()
	c := &Client{Endpoint: front.URL, Cache: t.TempDir(), Token: testToken, Attempts: 1}
	path, err := c.pull(t.Context(), "owner/repo", nil)
	if err == nil {
		checkFile(t, path, files["a.gguf"])
	}
	if seen < 3 || withToken < 4 || withToken%2 != 0 {
		t.Errorf("%d requests without the token at the other port, %d with it at the endpoint; error %v", seen, withToken, err)
	}
}

// TestLog: a pull says what it does before it waits for anything, and names every attempt that failed.
func TestLog(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	c := h.client()
	var lines []string
	c.Log = func(s string) { lines = append(lines, s) }
	busy := 1
	inner := h.hub.Config.Handler
	h.hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(lines) == 0 {
			t.Error("the hub is asked before anything is said")
		}
		if busy > 0 {
			busy--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	})
	h.status, h.cut = []int{502}, []int{100_000}
	if _, err := c.pull(t.Context(), "owner/repo", nil); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"owner/repo: asking " + c.host(),
		"owner/repo: the server answered 503 Service Unavailable; attempt 2 of 3 in 1ms",
		"a.gguf: at byte 0 of 300000: the server answered 502 Bad Gateway; attempt 2 of 3 in 1ms",
		"a.gguf: at byte 100000 of 300000: unexpected EOF; attempt 1 of 3 in 1ms",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("the log is\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
