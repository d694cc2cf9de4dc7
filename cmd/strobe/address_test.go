package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// TestServeRefuses: what is wrong with a server's models or address is said in a sentence, before
// an address is printed.
func TestServeRefuses(t *testing.T) {
	dir := t.TempDir()
	model := testkit.Golden(t, "qwen3/model.gguf")
	cut := filepath.Join(dir, "cut.gguf")
	b, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	for _, c := range []struct{ line, want string }{
		{"--models " + model, "is a file; serve it with -m " + model},
		{"--models " + filepath.Join(dir, "no"), "there is no such folder"},
		{"-m " + cut, cut + ": "},
		{"-m " + testkit.Golden(t, "dflash-qwen3/model.gguf"), "the model cannot run"},
		{"-d " + cut, cut + ": "},
		{"-m " + dir, "is a folder; give one of its files (" + cut + ")"},
		{"-m " + t.TempDir(), "is a folder without GGUF files"},
		{"--port " + port, "port " + port + " of 127.0.0.1 is in use"},
		{"--host 192.0.2.1", "--host 192.0.2.1: is no address of this machine"},
		{"--host no.such.invalid", "--host no.such.invalid: there is no machine of that name"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve", "--port", "0"}, strings.Fields(c.line)...), nil, &out, &errs)
		if code == exitOK || out.Len() > 0 || !strings.Contains(errs.String(), c.want) {
			t.Errorf("serve %s: code %d, %q, %s", c.line, code, out.String(), errs.String())
		}
		for _, bad := range []string{"bind:", "dial ", "listen tcp", "lookup "} {
			if strings.Contains(errs.String(), bad) {
				t.Errorf("serve %s: %s", c.line, errs.String())
			}
		}
	}
}

// TestServeEmptyFolder: a folder without models is served, since they may come, and that is said first.
func TestServeEmptyFolder(t *testing.T) {
	_, stop := serve(t, "--models", t.TempDir())
	code, log := stop()
	warned, listening := strings.Index(log, "no GGUF file"), strings.Index(log, "listening")
	if code != exitOK || warned < 0 || warned > listening {
		t.Errorf("code %d, log %s", code, log)
	}
	if !strings.Contains(log, "stopping") || !strings.Contains(log, "running requests") {
		t.Errorf("it does not say what it waits for: %s", log)
	}
}

// TestServeEverywhere: 0.0.0.0 is the machine's IPv4 addresses, printed as people can open them.
func TestServeEverywhere(t *testing.T) {
	url, _ := serve(t, "--host", "0.0.0.0", "--models", t.TempDir())
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("it prints %s", url)
	}
	ln, err := listen("0.0.0.0", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if at := ln.Addr().(*net.TCPAddr); at.IP.To4() == nil {
		t.Errorf("it listens on %v", at)
	}
	for _, u := range addresses("http", ln) {
		if host, _, _ := net.SplitHostPort(strings.TrimPrefix(u, "http://")); net.ParseIP(host).To4() == nil ||
			net.ParseIP(host).IsUnspecified() {
			t.Errorf("it prints %s", u)
		}
	}
}

// TestNoServer: ps and check take the same addresses, keys and variables, and say in a sentence that no
// server is there.
func TestNoServer(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	ln.Close()
	for _, command := range []string{"ps", "check"} {
		for _, c := range []struct {
			args []string
			want string
			code int
		}{
			{[]string{at}, "no server answers at http://" + at, exitError},
			{[]string{"http://" + at + "/v1/"}, "no server answers at http://" + at + ";", exitError},
			{[]string{"--server", at}, "no server answers at http://" + at, exitError},
			{[]string{"http://no.such.invalid"}, "there is no machine called no.such.invalid", exitError},
			{[]string{"ftp://x"}, `"ftp://x" is no address`, exitUsage},
			{[]string{"http://"}, "is no address", exitUsage},
		} {
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{command}, c.args...), nil, &out, &errs)
			text := out.String() + errs.String()
			if code != c.code || !strings.Contains(text, c.want) || strings.Contains(text, "dial ") {
				t.Errorf("%s %v: code %d, %s", command, c.args, code, text)
			}
		}
		var key string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key = r.Header.Get("Authorization")
			w.WriteHeader(http.StatusTeapot)
		}))
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte("# mine\nfrom-file\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("STROBE_SERVER", srv.URL)
		for want, args := range map[string][]string{
			"Bearer given": {"--api-key", "given"}, "Bearer from-file": {"--api-key-file", file}, "Bearer variable": nil,
		} {
			t.Setenv(keyVariable, "variable")
			var out, errs bytes.Buffer
			run(t.Context(), append([]string{command}, args...), nil, &out, &errs)
			if key != want {
				t.Errorf("%s %v: asked with %q, want %q; %s%s", command, args, key, want, out.String(), errs.String())
			}
		}
		os.Unsetenv("STROBE_SERVER")
		srv.Close()
	}
}
