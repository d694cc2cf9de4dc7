package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestUpstreamsInTheFile: the file of settings names upstreams and their keys, and the keys of both sides stay where
// they belong: in requests, answers, errors and logs.
func TestUpstreamsInTheFile(t *testing.T) {
	const theirs, ours = "sk-upstream-secret", "sk-client-secret"
	var mu sync.Mutex
	var seen []string
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		seen = append(seen, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header, " ", string(body)))
		mu.Unlock()
		switch {
		case r.Header.Get("Authorization") != "Bearer "+theirs:
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":{"message":"wrong key %s"}}`, r.Header.Get("Authorization"))
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"its-name"}]}`)
		case r.URL.Path == "/v1/chat/completions":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":"%s may not ask that"}}`, r.Header.Get("Authorization"))
		case r.URL.Path == "/v1/embeddings":
			http.Redirect(w, r, "/?key="+theirs, http.StatusFound)
		}
	}))
	defer up.Close()
	dir := t.TempDir()
	keyFile := filepath.Join(dir, "key")
	if err := os.WriteFile(keyFile, []byte(theirs+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(dir, "strobe.toml")
	if err := os.WriteFile(settings, []byte(fmt.Sprintf("[serve]\nupstream = [%q, %q]\nupstream-key = [%q]\n", "far="+up.URL,
		"other="+up.URL+"/v1#its-name", "far=@"+keyFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := serve(t, "--config", settings, "--api-key", ours)
	auth := []string{"Authorization", "Bearer " + ours, "X-Api-Key", ours}
	said := ""
	for range 500 {
		_, v := ask(t, url+"/v1/models", "", auth...)
		if said = fmt.Sprint(v); strings.Contains(said, "far") && strings.Contains(said, "loaded") {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !strings.Contains(said, "other") || !strings.Contains(said, "loaded") {
		t.Errorf("models %s", said)
	}
	for path, want := range map[string]int{"/v1/chat/completions": 400, "/v1/responses": 400, "/v1/embeddings": 502} {
		for _, model := range []string{"far", "other"} {
			status, v := ask(t, url+path, `{"model":"`+model+`","input":"x","messages":[{"role":"user","content":"x"}]}`, auth...)
			if said += fmt.Sprint(v); model == "far" && status != want {
				t.Errorf("%s: %d %v", path, status, v)
			}
		}
	}
	_, log := stop()
	if strings.Contains(said, theirs) || strings.Contains(log, theirs) || strings.Contains(log, ours) {
		t.Errorf("a key got out, in answers\n%s\nor the log\n%s", said, log)
	}
	if !strings.Contains(log, "it refuses the key") {
		t.Errorf("the log does not say what is wrong with the upstream without a key:\n%s", log)
	}
	mu.Lock()
	defer mu.Unlock()
	if all := strings.Join(seen, "\n"); strings.Contains(all, ours) || !strings.Contains(all, theirs) {
		t.Errorf("the upstream got\n%s", all)
	}
	for _, args := range [][]string{
		{"--upstream-key", "far=" + theirs}, {"--upstream", "far=" + up.URL, "--upstream-key", theirs},
		{"--upstream", "far=http://me:" + theirs + "@host"},
	} {
		var out strings.Builder
		if code := run(t.Context(), append([]string{"serve", "--port", "0"}, args...), nil, &out, &out); code != exitUsage ||
			strings.Contains(out.String(), theirs) {
			t.Errorf("%v: exit code %d, %s", args, code, out.String())
		}
	}
}

// TestMCPFlags: --mcp takes servers with names, keys go to the right one, and other machines need a key.
func TestMCPFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  serveOptions
		keyed bool
		want  string
	}{
		{serveOptions{host: "127.0.0.1", mcp: []string{"a=http://x/mcp", "b=https://y?z=1"},
			mcpKeys: []string{"b=@" + file}}, false,
			"[{a http://x/mcp } {b https://y?z=1 secret}]"},
		{serveOptions{host: "0.0.0.0", mcp: []string{"a=http://x"}}, true, "[{a http://x }]"},
		{serveOptions{host: "0.0.0.0", mcp: []string{"a=http://x"}}, false, "needs --api-key"},
		{serveOptions{host: "127.0.0.1", mcp: []string{"http://x"}}, false, "want NAME=URL"},
		{serveOptions{host: "127.0.0.1", mcp: []string{"a=x"}}, false, "--mcp a: want an address"},
		{serveOptions{host: "127.0.0.1", mcp: []string{"a=http://x", "a=http://y"}}, false, "two servers a"},
		{serveOptions{host: "127.0.0.1", mcp: []string{"a=http://x"}, mcpKeys: []string{"b=k"}}, false,
			"there is no --mcp b"},
		{serveOptions{host: "127.0.0.1", mcpKeys: []string{"b"}}, false, "--mcp-key: want NAME=KEY"},
	} {
		list, err := c.what.mcpServers(c.keyed)
		got := fmt.Sprint(list)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%v %v: %s, want %s", c.what.mcp, c.what.mcpKeys, got, c.want)
		}
	}
}
