package main

import (
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"strobe/internal/testkit"
)

// TestPullCommand runs the command against a server that knows one small file.
func TestPullCommand(t *testing.T) {
	want, err := os.ReadFile(testkit.Golden(t, "qwen35/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	const commit = "00112233445566778899aabbccddeeff00112233"
	id := fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(want)), want...)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/models/owner/repo/revision/main":
			json.NewEncoder(w).Encode(map[string]string{"sha": commit})
		case "/api/models/owner/repo/tree/" + commit:
			json.NewEncoder(w).Encode([]any{map[string]any{"type": "file", "path": "m.gguf", "size": len(want), "oid": id}})
		case "/owner/repo/resolve/" + commit + "/m.gguf":
			w.Header().Set("ETag", `"`+id+`"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(want))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	t.Setenv("HF_HUB_OFFLINE", "")
	cache := t.TempDir()
	strobe := func(args ...string) (code int, stdout, stderr string) {
		var out, errs strings.Builder
		code = run(t.Context(), append(args, "--endpoint", srv.URL, "--cache", cache), strings.NewReader(""), &out, &errs)
		return code, out.String(), errs.String()
	}

	code, stdout, stderr := strobe("pull", "owner/repo")
	path := filepath.Join(cache, "models--owner--repo", "snapshots", commit, "m.gguf")
	if code != 0 || stdout != path+"\n" || !strings.Contains(stderr, "owner/repo: m.gguf (") {
		t.Fatalf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("content differs (error %v)", err)
	}
	if code, stdout, stderr := strobe("pull", "-q", "owner/repo:m.gguf"); code != 0 || stdout != path+"\n" ||
		stderr != "" {
		t.Errorf("quiet: exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if code, stdout, stderr := strobe("pull", "owner/absent"); code != exitError || stdout != "" ||
		stderr != "looking for owner/absent at "+srv.URL+"\nstrobe: owner/absent: there is no such repository\n" {
		t.Errorf("absent: exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if code, _, stderr := strobe("pull", "nonsense"); code != exitUsage ||
		!strings.Contains(stderr, "OWNER/REPO names one") {
		t.Errorf("nonsense: exit %d, stderr %q", code, stderr)
	}
}
