package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	testCommit = "0123456789abcdef0123456789abcdef01234567"
	testToken  = "hf_secret"
)

// A fakeHub answers like the hub: an API, pages, redirects of large files to a
// storage on another host, ranges, and its error codes.
type fakeHub struct {
	t     *testing.T
	files map[string][]byte // of owner/repo at testCommit
	hub   *httptest.Server
	cdn   *httptest.Server

	// Faults, set by tests before the first request.
	private     bool
	gated       bool
	cut         []int             // the storage drops its n-th answer after so many bytes
	noRange     bool              // the storage ignores ranges
	badRange    bool              // the storage answers another range than asked
	status      []int             // the storage's first answers are these instead
	corrupt     bool              // the storage flips a bit
	extra       bool              // the storage sends more than announced
	lieSize     int64             // added to the size in HEAD
	lieTree     map[string]string // hash in the list of files by name
	commitIs    string            // instead of testCommit
	nextPage    string            // Link target instead of the real one
	headRenamed bool              // the repository has moved

	mu       sync.Mutex
	requests []string // method, path and range
}

func sha(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

func gitID(b []byte) string {
	return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...)))
}

// large files are kept outside git.
func large(b []byte) bool { return len(b) > 100 }

func newHub(t *testing.T, files map[string][]byte) *fakeHub {
	h := &fakeHub{t: t, files: files, commitIs: testCommit}
	h.hub = httptest.NewServer(http.HandlerFunc(h.serveHub))
	h.cdn = httptest.NewServer(http.HandlerFunc(h.serveCDN))
	t.Cleanup(h.hub.Close)
	t.Cleanup(h.cdn.Close)
	return h
}

func (h *fakeHub) client() *Client {
	return &Client{Endpoint: h.hub.URL, Cache: filepath.Join(h.t.TempDir(), "hub"), Attempts: 3, Backoff: time.Millisecond}
}

func (h *fakeHub) log(r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
}

// took forgets and returns the requests whose text contains part.
func (h *fakeHub) took(part string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, r := range h.requests {
		if strings.Contains(r, part) {
			out = append(out, r)
		}
	}
	h.requests = nil
	return out
}

func (h *fakeHub) serveHub(w http.ResponseWriter, r *http.Request) {
	h.log(r)
	fail := func(status int, code string) {
		w.Header().Set("X-Error-Code", code)
		w.Header().Set("X-Error-Message", "something went wrong")
		w.WriteHeader(status)
	}
	hasToken := r.Header.Get("Authorization") == "Bearer "+testToken
	if h.private && !hasToken {
		fail(http.StatusUnauthorized, "RepoNotFound")
		return
	}
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/api/models/"); ok {
		rest, ok = strings.CutPrefix(rest, "owner/repo/")
		if !ok {
			fail(http.StatusNotFound, "RepoNotFound")
			return
		}
		if rev, ok := strings.CutPrefix(rest, "revision/"); ok {
			if rev != "main" && rev != "refs/pr/1" && rev != testCommit {
				fail(http.StatusNotFound, "RevisionNotFound")
				return
			}
			json.NewEncoder(w).Encode(map[string]any{"id": "owner/repo", "sha": h.commitIs})
			return
		}
		h.serveTree(w, r)
		return
	}
	name, ok := strings.CutPrefix(path, "/owner/repo/resolve/"+testCommit+"/")
	if h.headRenamed {
		if moved, was := strings.CutPrefix(path, "/moved/repo/resolve/"+testCommit+"/"); was {
			name, ok = moved, true
		} else {
			http.Redirect(w, r, "/moved/repo/resolve/"+testCommit+"/"+name, http.StatusTemporaryRedirect)
			return
		}
	}
	data, known := h.files[name]
	switch {
	case !ok || !known:
		fail(http.StatusNotFound, "EntryNotFound")
	case h.gated && !hasToken:
		fail(http.StatusForbidden, "GatedRepo")
	case large(data):
		w.Header().Set("X-Repo-Commit", testCommit)
		w.Header().Set("X-Linked-Etag", `"`+sha(data)+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(int64(len(data))+h.lieSize))
		// The storage is on another host, so that a leaked token shows.
		addr := strings.Replace(h.cdn.URL, "127.0.0.1", "localhost", 1)
		http.Redirect(w, r, addr+"/blob/"+sha(data)+"?signature=x", http.StatusFound)
	default:
		w.Header().Set("X-Repo-Commit", testCommit)
		w.Header().Set("ETag", `W/"`+gitID(data)+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

// serveTree lists two files a page.
func (h *fakeHub) serveTree(w http.ResponseWriter, r *http.Request) {
	names := []string{}
	for n := range h.files {
		names = append(names, n)
	}
	slices.Sort(names)
	var from int
	fmt.Sscan(r.URL.Query().Get("cursor"), &from)
	page := []any{map[string]any{"type": "directory", "path": "folder", "oid": "x"}}
	for _, n := range names[from:min(from+2, len(names))] {
		data := h.files[n]
		e := map[string]any{"type": "file", "path": n, "size": len(data), "oid": gitID(data)}
		if large(data) {
			e["lfs"] = map[string]any{"oid": sha(data), "size": len(data), "pointerSize": 130}
		}
		if lie, ok := h.lieTree[n]; ok {
			e["oid"], e["lfs"] = lie, nil
		}
		page = append(page, e)
	}
	if from+2 < len(names) {
		next := fmt.Sprintf("%s%s?recursive=true&cursor=%d", h.hub.URL, r.URL.Path, from+2)
		if h.nextPage != "" {
			next = h.nextPage
		}
		w.Header().Set("Link", `<`+next+`>; rel="next"`)
	}
	json.NewEncoder(w).Encode(page)
}

func (h *fakeHub) serveCDN(w http.ResponseWriter, r *http.Request) {
	h.log(r)
	if r.Header.Get("Authorization") != "" {
		h.t.Error("the token was sent to the storage")
	}
	if r.Method == http.MethodHead {
		h.t.Error("HEAD followed the redirect to the storage")
	}
	var data []byte
	for _, d := range h.files {
		if r.URL.Path == "/blob/"+sha(d) {
			data = slices.Clone(d)
		}
	}
	h.mu.Lock()
	status, cut := 0, -1
	if len(h.status) > 0 {
		status, h.status = h.status[0], h.status[1:]
	} else if len(h.cut) > 0 {
		cut, h.cut = h.cut[0], h.cut[1:]
	}
	h.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	if h.corrupt {
		data[len(data)/2] ^= 1
	}
	if h.extra {
		w.Write(append(data, "and more"...))
		return
	}
	if h.badRange && r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(data)-1, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data)
		return
	}
	if h.noRange {
		r.Header.Del("Range")
	}
	if cut >= 0 {
		w = &cutWriter{ResponseWriter: w, left: cut}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// cutWriter breaks the connection after some bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		c.ResponseWriter.Write(b[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

// content is n bytes that differ from file to file and place to place.
func content(name string, n int) []byte {
	var out []byte
	for i := 0; len(out) < n; i++ {
		out = append(out, sha(fmt.Appendf(nil, "%s %d", name, i))...)
	}
	return out[:n]
}

func modelFiles(names ...string) map[string][]byte {
	files := map[string][]byte{"README.md": []byte("# readme"), ".gitattributes": []byte("*.gguf lfs")}
	for _, n := range names {
		files[n] = content(n, 300_000)
	}
	return files
}

func checkFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that are not the %d expected", path, len(got), len(want))
	}
}

func TestPull(t *testing.T) {
	h := newHub(t, modelFiles("a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf"))
	c := h.client()
	var last Progress
	path, err := c.pull(t.Context(), "owner/repo", func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	data := h.files["a-Q4_K_M.gguf"]
	checkFile(t, path, data)
	if last.Done != 300_000 || last.Total != 300_000 || last.File != "a-Q4_K_M.gguf" {
		t.Errorf("last progress: %+v", last)
	}

	// The layout is that of the Python tools.
	repo := filepath.Join(c.Cache, "models--owner--repo")
	if want := filepath.Join(repo, "snapshots", testCommit, "a-Q4_K_M.gguf"); path != want {
		t.Errorf("path is %s, want %s", path, want)
	}
	if target, err := os.Readlink(path); err != nil || filepath.ToSlash(target) != "../../blobs/"+sha(data) {
		t.Errorf("link to %q, error %v", target, err)
	}
	checkFile(t, filepath.Join(repo, "blobs", sha(data)), data)
	checkFile(t, filepath.Join(repo, "refs", "main"), []byte(testCommit))

	// Again: nothing is fetched.
	h.took("")
	if again, err := c.pull(t.Context(), "owner/repo", nil); err != nil || again != path {
		t.Errorf("second pull: %s, error %v", again, err)
	}
	if got := h.took("resolve"); len(got) > 0 {
		t.Errorf("second pull asked for %v", got)
	}

	// Another type of the same model.
	path, err = c.pull(t.Context(), "owner/repo:q8_0", nil)
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, path, h.files["a-Q8_0.gguf"])

	// Without the hub, what is there is found.
	h.hub.Close()
	off := *c
	off.Offline = true
	if got, err := off.pull(t.Context(), "owner/repo:Q8_0", nil); err != nil || got != path {
		t.Errorf("offline: %s, error %v", got, err)
	}
	if _, err := off.pull(t.Context(), "owner/other", nil); err == nil ||
		!strings.Contains(err.Error(), "owner/other: not in the cache") {
		t.Errorf("offline, not there: got error %v", err)
	}
}

// TestChanged: a file whose content is not what it was at an earlier pull is named, and no other.
func TestChanged(t *testing.T) {
	h := newHub(t, modelFiles("a-Q4_K_M.gguf", "a-Q8_0.gguf"))
	c := h.client()
	var lines []string
	c.Log = func(line string) { lines = append(lines, line) }
	pull := func(ref, want string) {
		t.Helper()
		lines = nil
		if _, err := c.pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
		lines = slices.DeleteFunc(lines, func(s string) bool { return !strings.Contains(s, "changed") })
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("%s: said %q, want %q", ref, got, want)
		}
	}
	pull("owner/repo:Q4_K_M", "")
	pull("owner/repo:Q8_0", "")
	pull("owner/repo:Q4_K_M", "")
	// That was an earlier commit. One of the two files is another one now.
	earlier := strings.Repeat("a", 40)
	if err := os.Rename(c.snapshot("owner/repo", testCommit), c.snapshot("owner/repo", earlier)); err != nil {
		t.Fatal(err)
	}
	ref := filepath.Join(c.Cache, "models--owner--repo", "refs", "main")
	setRef := func(text string) {
		if err := os.WriteFile(ref, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	setRef(earlier)
	was := sha(h.files["a-Q8_0.gguf"])
	h.files["a-Q8_0.gguf"] = bytes.Repeat([]byte("new"), 1000)
	now := sha(h.files["a-Q8_0.gguf"])
	pull("owner/repo:Q4_K_M", "")
	setRef(earlier)
	pull("owner/repo:Q8_0", fmt.Sprintf("note: owner/repo: a-Q8_0.gguf has changed at the hub since it was pulled: "+
		"hash %s, was %s", now[:12], was[:12]))
	pull("owner/repo:Q8_0", "")
	// What is no commit leads nowhere, even where something lies.
	if err := os.Rename(c.snapshot("owner/repo", earlier), filepath.Join(c.Cache, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	setRef("../../elsewhere")
	pull("owner/repo:Q8_0", "")
}

func TestPullSmallFileByName(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	c := h.client()
	path, err := c.pull(t.Context(), "owner/repo@refs/pr/1:README.md", nil)
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, path, h.files["README.md"])
	checkFile(t, filepath.Join(c.Cache, "models--owner--repo", "refs", "refs", "pr", "1"), []byte(testCommit))
	checkFile(t, filepath.Join(c.Cache, "models--owner--repo", "blobs", gitID(h.files["README.md"])), h.files["README.md"])
}

func TestPullParts(t *testing.T) {
	parts := []string{"Q4_K_M/m-Q4_K_M-00001-of-00003.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00003.gguf",
		"Q4_K_M/m-Q4_K_M-00003-of-00003.gguf"}
	h := newHub(t, modelFiles(append(parts, "m-BF16.gguf")...))
	for _, ref := range []string{"owner/repo", "owner/repo:" + parts[1]} {
		c := h.client()
		path, err := c.pull(t.Context(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(filepath.ToSlash(path), parts[0]) {
			t.Errorf("%s: opened %s, want the first part", ref, path)
		}
		for _, p := range parts {
			checkFile(t, filepath.Join(c.snapshot("owner/repo", testCommit), filepath.FromSlash(p)), h.files[p])
		}
	}
	delete(h.files, parts[2])
	if _, err := h.client().pull(t.Context(), "owner/repo", nil); err == nil ||
		!strings.Contains(err.Error(), parts[2]+" is missing") {
		t.Errorf("a part is missing: got error %v", err)
	}
}

func TestPullCheckpoint(t *testing.T) {
	h := newHub(t, modelFiles("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
		"onnx/model.safetensors", "pytorch_model.bin"))
	h.files["config.json"] = []byte("{}")
	h.files["model.safetensors.index.json"] = []byte("{}")
	path, err := h.client().pull(t.Context(), "owner/repo", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			got = append(got, d.Name())
		}
		return err
	})
	if want := "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors " +
		"model.safetensors.index.json"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestWithoutSymlinks(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	c := h.client()
	c.symlink = func(string, string) error { return errors.New("not on this system") }
	path, err := c.pull(t.Context(), "owner/repo", nil)
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, path, h.files["a.gguf"])
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		t.Errorf("%s is not a plain file (error %v)", path, err)
	}
	to := filepath.Join(t.TempDir(), "copy")
	if err := copyFile(path, to); err != nil {
		t.Fatal(err)
	}
	checkFile(t, to, h.files["a.gguf"])
}

// TestResume: the connection is cut again and again, by a pull and between two.
func TestResume(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	c := h.client()
	h.cut = []int{100_000, 50_000, 0, 0, 0, 70_000}
	_, err := c.pull(t.Context(), "owner/repo", nil)
	if err == nil || !strings.Contains(err.Error(), "run it again to go on from byte 150000 of 300000") {
		t.Fatalf("first pull: got error %v", err)
	}
	incomplete := filepath.Join(c.Cache, "models--owner--repo", "blobs", sha(h.files["a.gguf"])+".incomplete")
	checkFile(t, incomplete, h.files["a.gguf"][:150_000])
	h.took("")
	var seen []int64
	path, err := c.pull(t.Context(), "owner/repo", func(p Progress) { seen = append(seen, p.Done) })
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, path, h.files["a.gguf"])
	if seen[0] != 150_000 || !slices.IsSorted(seen) || seen[len(seen)-1] != 300_000 {
		t.Errorf("progress: %v", seen)
	}
	var ranges []string
	for _, r := range h.took("GET /blob") {
		ranges = append(ranges, r[strings.LastIndexByte(r, ' ')+1:])
	}
	if want := []string{"bytes=150000-", "bytes=220000-"}; !slices.Equal(ranges, want) {
		t.Errorf("ranges: %v, want %v", ranges, want)
	}
	if _, err := os.Stat(incomplete); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the partial file is still there (error %v)", err)
	}
}

func TestResumeOddities(t *testing.T) {
	data := modelFiles("a.gguf")["a.gguf"]
	for _, c := range []struct {
		name    string
		partial []byte
		fault   func(h *fakeHub)
		want    string // error; empty when the pull must succeed
	}{
		{"range ignored", data[:1000], func(h *fakeHub) { h.noRange = true }, ""},
		{"another range", data[:1000], func(h *fakeHub) { h.badRange = true }, ""},
		{"range refused", data[:1000], func(h *fakeHub) { h.status = []int{http.StatusRequestedRangeNotSatisfiable} }, ""},
		{"already complete", data, func(h *fakeHub) {}, ""},
		{"too long", append(data[:len(data):len(data)], 1), func(h *fakeHub) {}, ""},
		{"storage is busy", nil, func(h *fakeHub) { h.status = []int{503, 429} }, ""},
		{"storage is down", nil, func(h *fakeHub) { h.status = []int{500, 500, 500, 500} }, "the server answered 500"},
		{"signature expired", nil, func(h *fakeHub) { h.status = []int{403} }, "no such repository"},
		{"partial is wrong", bytes.Repeat([]byte("x"), 1000), func(h *fakeHub) {}, "the hash of the content is"},
		{"content is wrong", nil, func(h *fakeHub) { h.corrupt = true }, "the hash of the content is"},
		{"too much", nil, func(h *fakeHub) { h.extra = true }, "sends more than the 300000 bytes"},
		{"size lies", nil, func(h *fakeHub) { h.lieSize = 1 },
			"the server's size 300001 is not that of its list of files, 300000"},
		{"hash lies", nil, func(h *fakeHub) { h.lieTree = map[string]string{"a.gguf": gitID(nil)} },
			"is not that of its list of files"},
		{"renamed", nil, func(h *fakeHub) { h.headRenamed = true }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHub(t, modelFiles("a.gguf"))
			c.fault(h)
			cl := h.client()
			blob := filepath.Join(cl.Cache, "models--owner--repo", "blobs", sha(data))
			if c.partial != nil {
				if err := os.MkdirAll(filepath.Dir(blob), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(blob+".incomplete", c.partial, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			path, err := cl.pull(t.Context(), "owner/repo", nil)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				checkFile(t, path, data)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "owner/repo: a.gguf: ") {
				t.Fatalf("got error %v, want it to contain %q", err, c.want)
			}
			for _, gone := range []string{blob, filepath.Join(cl.snapshot("owner/repo", testCommit), "a.gguf")} {
				if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s exists after the error", gone)
				}
			}
			if strings.Contains(c.want, "hash of the content") {
				if _, err := os.Stat(blob + ".incomplete"); !errors.Is(err, fs.ErrNotExist) {
					t.Error("wrong content is kept and would fail for ever")
				}
			}
		})
	}
}

// TestSmallFileCut: a restart must not lose the head of a git hash.
func TestSmallFileRestart(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	c := h.client()
	data := h.files["README.md"]
	blob := filepath.Join(c.Cache, "models--owner--repo", "blobs", gitID(data))
	if err := os.MkdirAll(filepath.Dir(blob), 0o755); err != nil {
		t.Fatal(err)
	}
	// Offset 3 of a file whose server has no ranges for it: it starts again.
	if err := os.WriteFile(blob+".incomplete", data[:3], 0o644); err != nil {
		t.Fatal(err)
	}
	inner := h.hub.Config.Handler
	h.hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Range")
		inner.ServeHTTP(w, r)
	})
	path, err := c.pull(t.Context(), "owner/repo:README.md", nil)
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, path, data)
}

func TestCancel(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := h.client().pull(ctx, "owner/repo", func(p Progress) {
		if p.Done > 0 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want cancelled", err)
	}
}

// TestTogether: several pulls of one file at once fetch it once.
func TestTogether(t *testing.T) {
	h := newHub(t, modelFiles("a.gguf"))
	c := h.client()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := c.pull(t.Context(), "owner/repo", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := h.took("GET /blob"); len(got) != 1 {
		t.Errorf("the storage was asked %d times: %v", len(got), got)
	}
}

func TestAccess(t *testing.T) {
	for _, c := range []struct {
		name, token, ref string
		fault            func(h *fakeHub)
		want             string
	}{
		{"private", "", "owner/repo", func(h *fakeHub) { h.private = true },
			"owner/repo: there is no such repository, or it is private; check the name, or set HF_TOKEN"},
		{"wrong token", "hf_wrong", "owner/repo", func(h *fakeHub) { h.private = true }, "the token has no access"},
		{"private with token", testToken, "owner/repo", func(h *fakeHub) { h.private = true }, ""},
		{"gated", "", "owner/repo", func(h *fakeHub) { h.gated = true },
			"access to the repository must be requested on its page; then set HF_TOKEN"},
		{"gated with token", testToken, "owner/repo", func(h *fakeHub) { h.gated = true }, ""},
		{"no repository", "", "owner/absent", func(h *fakeHub) {}, "owner/absent: there is no such repository"},
		{"no revision", "", "owner/repo@v9", func(h *fakeHub) {}, `owner/repo: there is no revision "v9"`},
		{"no file", "", "owner/repo:b.gguf", func(h *fakeHub) {},
			`owner/repo: no file "b.gguf" in the repository; add :FILE with one of a.gguf`},
		{"commit is a path", "", "owner/repo", func(h *fakeHub) { h.commitIs = "../../../etc" },
			`the server's commit "../../../etc" is not a hash`},
		{"page at another host", testToken, "owner/repo", func(h *fakeHub) { h.nextPage = "http://evil.example/x" },
			"continues at another host"},
		{"pages for ever", "", "owner/repo", func(h *fakeHub) { h.nextPage = "?recursive=true" }, "more than 200 pages"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHub(t, modelFiles("a.gguf"))
			c.fault(h)
			cl := h.client()
			cl.Token = c.token
			path, err := cl.pull(t.Context(), c.ref, nil)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				checkFile(t, path, h.files["a.gguf"])
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got error %v, want it to contain %q", err, c.want)
			}
			if err != nil && c.token != "" && strings.Contains(err.Error(), c.token) {
				t.Errorf("the error shows the token: %v", err)
			}
		})
	}
}

// TestHostileNames: no name from the server may leave the cache.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"../evil.gguf", "a/../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "C:\\evil.gguf", "C:evil.gguf", "a//evil.gguf",
		"./evil.gguf", "a/./evil.gguf", "evil\x00.gguf", "evil\n.gguf", "a /evil.gguf", strings.Repeat("x", 2000) + ".gguf",
	} {
		h := newHub(t, map[string][]byte{name: content(name, 200)})
		c := h.client()
		if _, err := c.pull(t.Context(), "owner/repo", nil); err == nil ||
			!strings.Contains(err.Error(), "not a safe relative path") {
			t.Errorf("%q: got error %v", name, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(c.Cache)); len(left) > 0 {
			t.Errorf("%q: left behind: %v", name, left)
		}
	}
	for _, hash := range []string{"../../../evil", "a/b", "", ".", "x.incomplete", strings.Repeat("a", 200)} {
		if _, err := (&Client{Cache: "c"}).blob("owner/repo", hash); err == nil {
			t.Errorf("hash %q is accepted as a file name", hash)
		}
	}
}

func TestParseRef(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Ref
	}{
		{"Qwen/Qwen3-0.6B-GGUF", Ref{"Qwen/Qwen3-0.6B-GGUF", "main", ""}},
		{"a/b:Q8_0", Ref{"a/b", "main", "Q8_0"}},
		{"a/b@v1.0:x/y.gguf", Ref{"a/b", "v1.0", "x/y.gguf"}},
		{"a/b@refs/pr/3", Ref{"a/b", "refs/pr/3", ""}},
	} {
		got, err := ParseRef(c.in)
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v (%s), error %v", c.in, got, got, err)
		}
	}
	for _, in := range []string{
		"", "model", "a/b/c", "/b", "a/", "../b", "a/..", "a/b..c", "a--b/c", "a b/c", "a/b:", "a/b:../x", "a/b:/x", "a/b@",
		"a/b@../x",
		"https://huggingface.co/a/b", "a/b?x", "a/b#x", "a/b%2e", "-a/b",
	} {
		if r, err := ParseRef(in); err == nil {
			t.Errorf("%q is accepted as %+v", in, r)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct{ name, file, files, want string }{
		{"only one", "", "README.md m-Q2_K.gguf", "m-Q2_K.gguf"},
		{"default", "", "m-Q2_K.gguf m-Q4_K_M.gguf m-Q4_K_S.gguf", "m-Q4_K_M.gguf"},
		{"lower case", "", "m.q8_0.gguf m.q4_k_m.gguf", "m.q4_k_m.gguf"},
		{"plain before variant", "", "m-UD-Q4_K_M.gguf m-Q4_K_M.gguf m-Q8_0.gguf", "m-Q4_K_M.gguf"},
		{"in a folder", "", "Q4_K_M/m.gguf Q8_0/m.gguf", "Q4_K_M/m.gguf"},
		{"none", "", "m-Q2_K.gguf m-Q8_0.gguf",
			"error: 2 models and none of type Q4_K_M in the repository; add :FILE with one of m-Q2_K.gguf, m-Q8_0.gguf"},
		{"two models", "", "m-Q4_K_M.gguf n-Q4_K_M.gguf", "error: 2 files of type Q4_K_M"},
		{"type", "q6_k", "m-Q6_K.gguf m-Q6_K_L.gguf", "m-Q6_K.gguf"},
		{"type is not a prefix", "Q4_K", "m-Q4_K_M.gguf m-Q4_K_S.gguf", `error: no file "Q4_K"`},
		{"name", "mmproj-F16.gguf", "m-F16.gguf mmproj-F16.gguf", "mmproj-F16.gguf"},
		{"any name", "config.json", "m.gguf config.json", "config.json"},
		{"nothing", "", "README.md", "error: no GGUF file and no safetensors checkpoint"},
		{"nothing of that name", "x.gguf", "README.md", `error: no file "x.gguf" in the repository; it has no GGUF files`},
		{"parts", "", "m-Q4_K_M-00002-of-00002.gguf m-Q4_K_M-00001-of-00002.gguf",
			"m-Q4_K_M-00001-of-00002.gguf m-Q4_K_M-00002-of-00002.gguf"},
		{"a drafter is no model", "", "m-Q4_K_M.gguf dflash-m-Q4_K_M.gguf mtp-m-Q4_K_M.gguf", "m-Q4_K_M.gguf"},
		{"nothing but drafters", "", "m-DFlash-Q4_K_M.gguf m-DFlash-Q8_0.gguf", "m-DFlash-Q4_K_M.gguf"},
		{"drafter", "-d ", "m-Q8_0.gguf mtp-m-Q8_0.gguf dflash-m-BF16.gguf dflash-m-Q8_0.gguf", "dflash-m-Q8_0.gguf"},
		{"small drafter", "-d ", "m-DFlash-Q4_K_M.gguf m-DFlash-Q5_K_M.gguf", "m-DFlash-Q4_K_M.gguf"},
		{"drafter by type", "-d bf16", "m-BF16.gguf dflash-m-BF16.gguf dflash-m-Q8_0.gguf", "dflash-m-BF16.gguf"},
		{"drafter in no name", "-d ", "m-Q8_0.gguf m-Q2_K.gguf", "m-Q8_0.gguf"},
		{"part number zero", "", "m-00000-of-00000.gguf", "m-00000-of-00000.gguf"},
	} {
		file, drafter := strings.CutPrefix(c.file, "-d ")
		got, _, err := choose(Ref{Repo: "a/b", File: file}, strings.Fields(c.files), drafter)
		s := strings.Join(got, " ")
		if err != nil {
			s = "error: " + strings.TrimPrefix(err.Error(), "a/b: ")
		}
		if s != c.want && !(strings.HasPrefix(c.want, "error: ") && strings.HasPrefix(s, c.want)) {
			t.Errorf("%s: got %s, want %s", c.name, s, c.want)
		}
	}
}

func TestChooseVision(t *testing.T) {
	for files, want := range map[string]string{
		"m-Q4_K_M.gguf README.md":                                       "",
		"mmproj-BF16.gguf mmproj-F16.gguf mmproj-F32.gguf m.gguf":       "mmproj-F16.gguf",
		"mmproj-model-bf16.gguf mmproj-model-Q8_0.gguf":                 "mmproj-model-bf16.gguf",
		"mmproj-F32.gguf mmproj-Q8_0.gguf":                              "mmproj-Q8_0.gguf",
		"mmproj-m-IQ4_NL.gguf mmproj-F32.gguf":                          "mmproj-F32.gguf",
		"sub/MMPROJ-m.gguf m-mmproj.gguf mmproj.txt":                    "sub/MMPROJ-m.gguf",
		"mmproj-large-F16.gguf mmproj-F16.gguf mmproj-b-large-F16.gguf": "mmproj-F16.gguf",
	} {
		if got := chooseVision(strings.Fields(files)); got != want {
			t.Errorf("%s: %q, want %q", files, got, want)
		}
	}
}

// TestVision: the image encoder of a model's repository is planned with it, lies beside it, and is listed and removed
// by itself.
func TestVision(t *testing.T) {
	h := newHub(t, map[string][]byte{"m-Q4_K_M.gguf": []byte("model"), "dflash-m-Q8_0.gguf": []byte("drafter"),
		"mmproj-F32.gguf": []byte("large"), "mmproj-F16.gguf": []byte("eyes")})
	c := h.client()
	p, err := c.Resolve(t.Context(), "owner/repo")
	if err != nil || p.Vision == nil || len(p.Files) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, plan := range []*Plan{p, p.Vision} {
		if _, err := c.Pull(t.Context(), plan, nil); err != nil {
			t.Fatal(err)
		}
	}
	if filepath.Dir(p.Path) != filepath.Dir(p.Vision.Path) || filepath.Base(p.Vision.Path) != "mmproj-F16.gguf" {
		t.Errorf("%s and %s", p.Path, p.Vision.Path)
	}
	if b, err := os.ReadFile(p.Vision.Path); err != nil || string(b) != "eyes" {
		t.Errorf("%q, %v", b, err)
	}
	if d, err := c.ResolveDrafter(t.Context(), "owner/repo"); err != nil || d.Vision != nil {
		t.Errorf("a drafter: %+v, %v", d, err)
	}
	if v, err := c.Resolve(t.Context(), "owner/repo:mmproj-F32.gguf"); err != nil || v.Vision != nil {
		t.Errorf("an image encoder: %+v, %v", v, err)
	}
	if l, err := c.Local("owner/repo", false); err != nil || l.Vision == nil || l.Vision.Path != p.Vision.Path {
		t.Errorf("local: %+v, %v", l, err)
	}
	list, err := c.List()
	if err != nil || len(list) != 2 || list[0].Vision || !list[1].Vision || list[1].Ref() != "owner/repo:mmproj-F16.gguf" {
		t.Fatalf("list %+v, %v", list, err)
	}
	if err := c.Remove(list[1]); err != nil {
		t.Fatal(err)
	}
	if l, err := c.Local("owner/repo", false); err != nil || l.Vision != nil {
		t.Errorf("after it was removed: %+v, %v", l, err)
	}
}

func TestFromEnv(t *testing.T) {
	home := t.TempDir()
	for _, n := range []string{"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE",
		"HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN_PATH", "XDG_CACHE_HOME"} {
		t.Setenv(n, "")
	}
	t.Setenv("HF_HOME", home)
	if err := os.WriteFile(filepath.Join(home, "token"), []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := FromEnv()
	if err != nil || c.Cache != filepath.Join(home, "hub") || c.Token != "from-file" || c.Endpoint != "" || c.Offline {
		t.Errorf("got %+v, error %v", c, err)
	}
	t.Setenv("HF_HUB_CACHE", "elsewhere")
	t.Setenv("HF_TOKEN", "from-env")
	t.Setenv("HF_ENDPOINT", "http://localhost:1")
	t.Setenv("HF_HUB_OFFLINE", "1")
	c, err = FromEnv()
	if err != nil || c.Cache != "elsewhere" || c.Token != "from-env" || c.Endpoint != "http://localhost:1" || !c.Offline {
		t.Errorf("got %+v, error %v", c, err)
	}
	t.Setenv("HF_HOME", "")
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", home)
	if c, err = FromEnv(); err != nil || c.Cache != filepath.Join(home, "huggingface", "hub") {
		t.Errorf("got %+v, error %v", c, err)
	}
}

func TestEndpoint(t *testing.T) {
	for _, end := range []string{"ftp://x", "huggingface.co", "://", "file:///etc"} {
		c := &Client{Endpoint: end, Cache: t.TempDir()}
		if _, err := c.Resolve(t.Context(), "a/b"); err == nil ||
			!strings.Contains(err.Error(), "not an http or https address") {
			t.Errorf("%s: got error %v", end, err)
		}
	}
	// Nobody listens.
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	c := &Client{Endpoint: gone.URL, Cache: t.TempDir(), Attempts: 2, Backoff: time.Millisecond}
	if _, err := c.Resolve(t.Context(), "a/b"); err == nil || !strings.HasPrefix(err.Error(), "a/b: ") {
		t.Errorf("got error %v", err)
	}
	// Somebody else listens.
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("<html>"))
	}))
	defer page.Close()
	c.Endpoint = page.URL
	if _, err := c.Resolve(t.Context(), "a/b"); err == nil || !strings.Contains(err.Error(), "not the JSON expected") {
		t.Errorf("got error %v", err)
	}
}

func TestNoDowngrade(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Error("followed to http")
	}))
	defer plain.Close()
	safe := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer safe.Close()
	c := &Client{Endpoint: safe.URL, Cache: t.TempDir(), HTTP: safe.Client(), Attempts: 1, Token: testToken}
	if _, err := c.Resolve(t.Context(), "a/b"); err == nil ||
		!strings.Contains(err.Error(), "redirects from https to http") {
		t.Errorf("got error %v", err)
	}
}

func (c *Client) pull(ctx context.Context, ref string, progress func(Progress)) (string, error) {
	p, err := c.Resolve(ctx, ref)
	if err != nil {
		return "", err
	}
	return c.Pull(ctx, p, progress)
}

// TestList: what was fetched is listed, found without the hub, and removed with its content.
func TestList(t *testing.T) {
	split := []byte(strings.Repeat("x", 200))
	h := newHub(t, map[string][]byte{"m-Q4_K_M.gguf": []byte("model"), "dflash-m-Q8_0.gguf": []byte("drafter"),
		"m-Q8_0-00001-of-00002.gguf": split, "m-Q8_0-00002-of-00002.gguf": []byte("second")})
	c := h.client()
	if list, err := c.List(); err != nil || len(list) != 0 {
		t.Fatalf("empty: %v, %v", list, err)
	}
	if _, err := c.Local("owner/repo", false); err == nil {
		t.Error("an empty cache has a model")
	}
	for _, ref := range []string{"owner/repo", "owner/repo:Q8_0", "owner/repo:dflash-m-Q8_0.gguf"} {
		p, err := c.Resolve(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Pull(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.took("")
	list, err := c.List()
	var got []string
	for _, x := range list {
		got = append(got, fmt.Sprintf("%s %d %v", x.Ref(), x.Size, x.Drafter))
	}
	want := "owner/repo:dflash-m-Q8_0.gguf 7 true, owner/repo:m-Q4_K_M.gguf 5 false, owner/repo:m-Q8_0.gguf 206 false"
	if err != nil || strings.Join(got, ", ") != want {
		t.Fatalf("list %v, error %v; want %s", got, err, want)
	}
	for _, w := range []struct {
		ref     string
		drafter bool
		base    string
	}{{"owner/repo", false, "m-Q4_K_M.gguf"}, {"owner/repo", true, "dflash-m-Q8_0.gguf"},
		{"owner/repo:Q8_0", false, "m-Q8_0-00001-of-00002.gguf"}} {
		if p, err := c.Local(w.ref, w.drafter); err != nil || filepath.Base(p.Path) != w.base {
			t.Errorf("local %s: %+v, %v; want %s", w.ref, p, err, w.base)
		}
	}
	if r := h.took(""); len(r) > 0 {
		t.Errorf("the hub was asked: %v", r)
	}
	blobs := filepath.Join(c.Cache, "models--owner--repo", "blobs")
	if err := c.Remove(list[2]); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(blobs); len(left) != 2 {
		t.Errorf("%d files of content are left, want 2", len(left))
	}
	if err := c.Remove(list[0]); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Local("owner/repo", false); err != nil || p.Size() != 5 {
		t.Errorf("the other model is gone: %v", err)
	}
	if err := c.Remove(list[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(blobs)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the repository stays: %v", err)
	}
}
