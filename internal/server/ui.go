package server

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed ui
var uiFiles embed.FS

// uiHandler serves the page. It loads nothing from elsewhere, and its policy says so: whatever a model writes, no
// script runs and no other server is asked.
func uiHandler() http.Handler {
	types := map[string]string{
		".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".md": "text/markdown; charset=utf-8",
	}
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
		h.Set("Content-Type", cmp.Or(types[path.Ext(name)], "text/plain; charset=utf-8"))
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(data)
	})
}
