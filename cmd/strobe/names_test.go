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
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/hub"
	"strobe/internal/testkit"
)

const hubCommit = "00112233445566778899aabbccddeeff00112233"

// newHub is a hub that has these files, by OWNER/REPO/FILE, for a program with an empty cache and no settings. It
// counts its requests.
func newHub(t *testing.T, files map[string][]byte) (requests *atomic.Int32) {
	t.Helper()
	requests = new(atomic.Int32)
	id := func(b []byte) string {
		return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...)))
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		for name, b := range files {
			i := strings.LastIndexByte(name, '/')
			repo, file := name[:i], name[i+1:]
			switch r.URL.Path {
			case "/api/models/" + repo + "/revision/main":
				json.NewEncoder(w).Encode(map[string]string{"sha": hubCommit})
				return
			case "/api/models/" + repo + "/tree/" + hubCommit:
				var list []any
				for n, b := range files {
					if f, ok := strings.CutPrefix(n, repo+"/"); ok {
						list = append(list, map[string]any{"type": "file", "path": f, "size": len(b), "oid": id(b)})
					}
				}
				json.NewEncoder(w).Encode(list)
				return
			case "/" + repo + "/resolve/" + hubCommit + "/" + file:
				w.Header().Set("ETag", `"`+id(b)+`"`)
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	home := t.TempDir()
	for name, v := range map[string]string{"HF_ENDPOINT": srv.URL, "HF_HUB_CACHE": filepath.Join(home, "hub"),
		"XDG_CONFIG_HOME": home, "HF_TOKEN": "", "HF_HUB_OFFLINE": ""} {
		t.Setenv(name, v)
	}
	return requests
}

// ownNames writes the user's table of names.
func ownNames(t *testing.T, text string) {
	t.Helper()
	dir, err := configDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "models.toml"), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func golden(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(testkit.Golden(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// TestNames: a name brings a model and its drafter; what was downloaded once needs no hub again.
func TestNames(t *testing.T) {
	requests := newHub(t, map[string][]byte{
		"owner/model/tiny-Q4_K_M.gguf":   golden(t, "qwen35/model.gguf"),
		"owner/model/tiny-Q8_0.gguf":     []byte("never asked for"),
		"owner/draft/tiny-DFlash.gguf":   golden(t, "dflash-qwen35/model.gguf"),
		"owner/misfit/other-DFlash.gguf": golden(t, "qwen3/model.gguf"),
	})
	ownNames(t, "[tiny]\nmodel = \"owner/model\"\n"+
		"drafters = [\"owner/absent:x.gguf\", \"owner/misfit\", \"owner/draft:tiny-DFlash.gguf\"]\n")
	ask := []string{"run", "tiny", "hello there", "-n", "6", "--temp", "0", "--device", "cpu"}
	code, text, stderr := command(t, ask...)
	if code != 0 || strings.TrimSpace(text) == "" {
		t.Fatalf("code %d, %q, %s", code, text, stderr)
	}
	for _, want := range []string{"owner/model: tiny-Q4_K_M.gguf (", "drafter owner/absent:x.gguf: ", "no such repository",
		"drafter owner/misfit: does not fit tiny-Q4_K_M.gguf", "\ndrafter owner/draft:tiny-DFlash.gguf\n", "pull: "} {
		if !strings.Contains(stderr, want) {
			t.Errorf("standard error lacks %q: %s", want, stderr)
		}
	}
	// The table that names nothing but what is here.
	ownNames(t, "[tiny]\nmodel = \"owner/model\"\ndrafters = [\"owner/draft:tiny-DFlash.gguf\"]\n")
	before := requests.Load()
	repo := []string{"run", "-m", "owner/model", "hello there", "-n", "6", "--temp", "0", "--device", "cpu"}
	for _, args := range [][]string{ask, repo} {
		code, again, stderr := command(t, args...)
		if code != 0 || again != text || !strings.Contains(stderr, "drafter owner/draft:tiny-DFlash.gguf") {
			t.Errorf("%v: code %d, %q, want %q; %s", args, code, again, text, stderr)
		}
	}
	if n := requests.Load() - before; n > 0 {
		t.Errorf("the hub got %d requests for what is here", n)
	}
	for _, c := range []struct {
		args, stdout string
	}{
		{"list", "owner/draft:tiny-DFlash.gguf"},
		{"list --json", `"kind":"drafter"`},
		{"show tiny", "architecture qwen35"},
		{"list --known", "qwen3.5-4b"},
		{"inspect tiny", "architecture qwen35"},
		{"inspect owner/draft --target tiny", "same vocabulary"},
		{"pull tiny", "tiny-DFlash.gguf"},
	} {
		if code, out, stderr := command(t, strings.Fields(c.args)...); code != 0 || !strings.Contains(out, c.stdout) {
			t.Errorf("%s: code %d, %s %s; want %q", c.args, code, out, stderr, c.stdout)
		}
	}
	if code, _, stderr := command(t, "rm", "tiny"); code != 0 || strings.Count(stderr, "deleted ") != 2 {
		t.Errorf("rm: code %d, %s", code, stderr)
	}
	if code, _, stderr := command(t, "rm", "tiny"); code != exitError || !strings.Contains(stderr, "not in the cache") {
		t.Errorf("second rm: code %d, %s", code, stderr)
	}
	if code, out, _ := command(t, "show", "tiny"); code != 0 || strings.Count(out, "not downloaded") != 2 {
		t.Errorf("show: code %d, %s", code, out)
	}
}

// TestFittingDrafter: a drafter from elsewhere in the cache is used if it is the only one that fits.
func TestFittingDrafter(t *testing.T) {
	drafter := golden(t, "dflash-qwen35/model.gguf")
	newHub(t, map[string][]byte{"owner/one/a-DFlash.gguf": drafter, "owner/two/b-DFlash.gguf": drafter,
		"owner/other/c-DFlash.gguf": golden(t, "qwen3/model.gguf")})
	model := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(model, golden(t, "qwen35/model.gguf"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ pull, want string }{
		{"owner/other", ""},
		{"owner/one", "drafter owner/one:a-DFlash.gguf: it fits"},
		{"owner/two", "several drafters fit, choose one with -d: owner/one:a-DFlash.gguf, owner/two:b-DFlash.gguf"},
	} {
		if code, _, stderr := command(t, "pull", c.pull); code != 0 {
			t.Fatal(stderr)
		}
		code, _, stderr := command(t, "run", model, "-p", "x", "-n", "2", "--device", "cpu")
		if code != 0 || !strings.Contains(stderr, c.want) || c.want == "" && strings.Contains(stderr, "drafter ") {
			t.Errorf("after %s: code %d, %q, want %q", c.pull, code, stderr, c.want)
		}
	}
	if code, _, stderr := command(t, "run", model, "-d", "owner/two", "-p", "x", "-n", "2", "--device", "cpu"); code != 0 {
		t.Errorf("-d: %s", stderr)
	}
}

// TestWrongNames: what is no name says so and what may have been meant.
func TestWrongNames(t *testing.T) {
	newHub(t, nil)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"run", "qwen3.5-4", "hello"}, exitUsage, `did you mean "qwen3.5-4b"?`},
		{[]string{"chat", "frobnicate"}, exitUsage, `"frobnicate" is no file and no name of a model (`},
		{[]string{"run", "missing.gguf", "hello"}, exitError, "missing.gguf"},
		{[]string{"run", "owner/absent", "hello"}, exitError, "owner/absent: there is no such repository"},
		{[]string{"run", "-m", "x.gguf", "two", "words"}, exitUsage, "needs quotes"},
		{[]string{"chat", "-m", "x.gguf", "qwen3.5-4b"}, exitUsage, "not both"},
		{[]string{"rm", "frobnicate"}, exitUsage, "no name"},
	} {
		if code, _, stderr := command(t, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: code %d, want %d; %s; want %q", c.args, code, c.code, stderr, c.want)
		}
	}
	ownNames(t, "[x]\nmodell = \"a/b\"\n")
	if code, _, stderr := command(t, "chat", "x"); code != exitUsage && code != exitError ||
		!strings.Contains(stderr, "models.toml: there is no setting") {
		t.Errorf("wrong table: code %d, %s", code, stderr)
	}
}

// TestBuiltinNames: the table that comes with the program is sound.
func TestBuiltinNames(t *testing.T) {
	newHub(t, nil)
	known, err := knownModels()
	if err != nil || len(known) < 10 {
		t.Fatal(len(known), err)
	}
	for name, x := range known {
		if name != strings.ToLower(name) || x.Size <= 0 {
			t.Errorf("%s: %+v", name, x)
		}
		for _, ref := range slices.Concat([]string{x.Model}, x.Mirrors, x.Drafters) {
			r, err := hub.ParseRef(ref)
			if err != nil || strings.Contains(r.File, ".") && !strings.HasSuffix(r.File, ".gguf") {
				t.Errorf("%s: %q: %v", name, ref, err)
			}
		}
		for _, ref := range x.Drafters {
			if !hub.IsDrafter(strings.ReplaceAll(ref, "/", "-")) && !strings.Contains(ref, "mtp-") {
				t.Errorf("%s: %s is no drafter", name, ref)
			}
		}
	}
}

// TestMirrors: the first repository that the hub lists is used, here and in pull, and what is cached is found again.
func TestMirrors(t *testing.T) {
	model := golden(t, "qwen3/model.gguf")
	requests := newHub(t, map[string][]byte{"second/m-GGUF/m-Q4_K_M.gguf": model, "second/m-GGUF/m-Q8_0.gguf": model,
		"third/m-GGUF/m-Q4_K_M.gguf": model})
	ownNames(t, `["m"]
model = "gone/m-GGUF"
mirrors = ["second/m-GGUF", "third/m-GGUF"]
size = 1
`)
	code, out, stderr := command(t, "pull", "m")
	if code != exitOK || !strings.Contains(out, "models--second--m-GGUF") || !strings.Contains(out, "m-Q4_K_M.gguf") ||
		!strings.Contains(stderr, "gone/m-GGUF") {
		t.Fatalf("pull: code %d, %s%s", code, out, stderr)
	}
	before := requests.Load()
	if code, out, stderr := command(t, "run", "m", "--raw", "-n", "2", "x"); code != exitOK || requests.Load() != before {
		t.Errorf("run: code %d, %d requests, %s%s", code, requests.Load()-before, out, stderr)
	}
	if code, out, stderr := command(t, "pull", "m:Q8_0"); code != exitOK || !strings.Contains(out, "m-Q8_0.gguf") {
		t.Errorf("another type: code %d, %s%s", code, out, stderr)
	}
	if code, out, _ := command(t, "show", "m"); code != exitOK || strings.Contains(out, "not downloaded") {
		t.Errorf("show: code %d, %s", code, out)
	}
	if code, _, stderr := command(t, "rm", "m"); code != exitOK || strings.Count(stderr, "deleted") != 2 {
		t.Errorf("rm: code %d, %s", code, stderr)
	}
	ownNames(t, `["m"]
model = "gone/m-GGUF"
mirrors = ["lost/m-GGUF"]
`)
	if code, _, stderr := command(t, "pull", "m"); code != exitError || !strings.Contains(stderr, "lost/m-GGUF") {
		t.Errorf("from nowhere: code %d, %s", code, stderr)
	}
}

// TestFits: where a model of some size runs.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		gpu, ram, need float64
		want           string
	}{
		{24, 32, 24, "GPU"}, {24, 32, 24.1, "GPU+CPU"}, {24, 32, 56.1, "no"}, {0, 32, 32, "CPU"}, {0, 32, 32.1, "no"},
		{24, 32, 0, ""}, {0, 0, 3, ""}, {24, 0, 25, "no"},
	} {
		if got := (machine{c.gpu, c.ram}).fits(c.need); got != c.want {
			t.Errorf("%g GB on a GPU, %g GB beside it, %g GB needed: %q, want %q", c.gpu, c.ram, c.need, got, c.want)
		}
	}
	if x := (hub.Named{Size: 10}); x.Memory() != 12 || (hub.Named{}).Memory() != 0 {
		t.Errorf("10 GB take %g", x.Memory())
	}
	if x := (hub.Named{Size: 10, Drafters: []string{"a/b"}}); x.Memory() != 13 {
		t.Errorf("10 GB with a drafter take %g", x.Memory())
	}
	if order := hub.Order(); order[0] != "qwen3.8-27b" || len(order) < 20 {
		t.Errorf("the list begins with %v", order)
	}
}

// TestPs: the loaded models of a server.
func TestPs(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/ps" || r.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"models":[{"name":"tiny","size":1500,"expires_at":"2318-01-01T00:00:00Z"}]}`)
	}))
	code, out, stderr := command(t, "ps", "--server", srv.URL, "--api-key", "k")
	if code != 0 || !strings.Contains(out, "tiny  1.5 kB  the server ends") {
		t.Errorf("code %d, %s %s", code, out, stderr)
	}
	if code, _, stderr := command(t, "ps", "--server", srv.URL); code != exitError || !strings.Contains(stderr, "401") {
		t.Errorf("no key: code %d, %s", code, stderr)
	}
	srv.Close()
	if code, _, stderr := command(t, "ps", "--server", srv.URL); code != exitError ||
		!strings.Contains(stderr, "no server answers at") {
		t.Errorf("no server: code %d, %s", code, stderr)
	}
}

// TestNamesBringVision: a short name brings the image encoder of the model's repository, which lies beside the model; a
// reference to a file brings that file.
func TestNamesBringVision(t *testing.T) {
	requests := newHub(t, map[string][]byte{
		"owner/model/tiny-Q4_K_M.gguf": golden(t, "qwen35/model.gguf"),
		"owner/model/mmproj-F16.gguf":  []byte("eyes"),
		"owner/model/mmproj-F32.gguf":  []byte("never asked for"),
	})
	ownNames(t, "[tiny]\nmodel = \"owner/model\"\n")
	if code, out, stderr := command(t, "pull", "owner/model"); code != 0 || strings.Contains(out+stderr, "mmproj") {
		t.Errorf("by repository: code %d, %s %s", code, out, stderr)
	}
	if code, out, stderr := command(t, "pull", "tiny"); code != 0 || strings.Count(out, "\n") != 2 ||
		!strings.HasSuffix(out, "mmproj-F16.gguf\n") {
		t.Errorf("by name: code %d, %s %s", code, out, stderr)
	}
	for args, want := range map[string]string{
		"list": "owner/model:mmproj-F16.gguf", "list --json": `"kind":"mmproj"`,
		"show tiny": "mmproj     owner/model:mmproj-F16.gguf",
	} {
		if code, out, stderr := command(t, strings.Fields(args)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: code %d, %s %s, want %q", args, code, out, stderr, want)
		}
	}
	if code, _, stderr := command(t, "rm", "tiny"); code != 0 || strings.Count(stderr, "deleted ") != 2 {
		t.Errorf("rm: code %d, %s", code, stderr)
	}
	ask := []string{"run", "tiny", "hello", "-n", "2", "--device", "cpu"}
	if code, _, stderr := command(t, ask...); code != 0 || !strings.Contains(stderr, "owner/model: mmproj-F16.gguf (") {
		t.Errorf("run: code %d, %s", code, stderr)
	}
	c, err := hub.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Local("owner/model", false)
	if err != nil || p.Vision == nil || filepath.Dir(p.Vision.Path) != filepath.Dir(p.Path) {
		t.Errorf("%+v, %v", p, err)
	}
	before := requests.Load()
	if code, _, stderr := command(t, ask...); code != 0 || requests.Load() != before {
		t.Errorf("again: code %d, %d requests, %s", code, requests.Load()-before, stderr)
	}
}
