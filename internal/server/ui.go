package server

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed ui
var uiFiles embed.FS

// uiPolicy lets the page load nothing from elsewhere: whatever a model writes, no script runs and no other server is
// asked.
const uiPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var uiTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".md": "text/markdown; charset=utf-8", ".woff2": "font/woff2",
}

// uiHandler serves the page, compressed for browsers that take it.
func uiHandler() http.Handler {
	var packed sync.Map // compressed files by name, when they were first asked for
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		if name == "" {
			name = "ui/index.html"
		}
		data, err := fs.ReadFile(uiFiles, name) // an embedded tree: nothing above it exists
		if err != nil {
			fail(w, r, &apiError{Status: http.StatusNotFound, Type: "not_found_error",
				Message: "there is nothing at " + r.URL.Path})
			return
		}
		sum := sha256.Sum256(data)
		tag := `"` + hex.EncodeToString(sum[:8]) + `"`
		h := w.Header()
		h.Set("ETag", tag)
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Type", cmp.Or(uiTypes[path.Ext(name)], "text/plain; charset=utf-8"))
		h.Set("Content-Security-Policy", uiPolicy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Add("Vary", "Accept-Encoding") // beside Origin
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		if takesGzip(r) && path.Ext(name) != ".woff2" { // fonts are compressed already
			small, ok := packed.Load(name)
			if !ok {
				small, _ = packed.LoadOrStore(name, pack(data))
			}
			h.Set("Content-Encoding", "gzip")
			data = small.([]byte)
		}
		_, _ = w.Write(data)
	})
}

// takesGzip reports whether a client says that it takes compressed files. One that gives it any weight but the highest
// gets them as they are.
func takesGzip(r *http.Request) bool {
	for e := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(e) == "gzip" {
			return true
		}
	}
	return false
}

func pack(data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(data) // memory takes everything
	_ = z.Close()
	return b.Bytes()
}
