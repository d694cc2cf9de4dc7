// Command dl fetches Go module archives from the module proxy named by "go env GOPROXY".
//
//	go run ./dl modules.txt zips
//
// modules.txt has one "path" or "path@version" per line; lines of SOURCES.tsv are accepted as they are, so a
// published corpus can be rebuilt from its own list of sources.  Without a version the newest release is taken.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const workers = 8

var client = &http.Client{Timeout: 5 * time.Minute}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: dl MODULES.txt FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "dl:", err)
		os.Exit(1)
	}
}

func run(list, out string) error {
	f, err := os.Open(list)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	base, err := proxy()
	if err != nil {
		return err
	}
	ch := make(chan string)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for m := range ch {
				msg, err := fetch(base, m, out)
				mu.Lock()
				if err != nil {
					failed++
					fmt.Println("failed:", m, err)
				} else if msg != "" {
					fmt.Println(msg)
				}
				mu.Unlock()
			}
		}()
	}
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		m, _, _ := strings.Cut(strings.TrimSpace(sc.Text()), "\t")
		if m == "" || m == "module" || strings.ContainsRune(m, ' ') { // header of SOURCES.tsv, the standard library
			continue
		}
		ch <- m
	}
	close(ch)
	wg.Wait()
	if failed > 0 {
		return fmt.Errorf("%d modules failed", failed)
	}
	return sc.Err()
}

// fetch stores one module archive as FOLDER/path__with__underscores@version.zip; it does nothing when the file exists.
func fetch(base, m, out string) (string, error) {
	mod, ver, pinned := strings.Cut(m, "@")
	if !pinned {
		var sb strings.Builder
		if err := get(base+escape(mod)+"/@v/list", &sb); err != nil {
			return "", err
		}
		if ver = newest(mod, strings.Fields(sb.String())); ver == "" {
			return "", fmt.Errorf("no versions")
		}
	}
	p := filepath.Join(out, strings.ReplaceAll(mod, "/", "__")+"@"+ver+".zip")
	if _, err := os.Stat(p); err == nil {
		return "", nil
	}
	g, err := os.Create(p + ".tmp")
	if err != nil {
		return "", err
	}
	err = get(base+escape(mod)+"/@v/"+escape(ver)+".zip", g)
	st, _ := g.Stat()
	if e := g.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(p + ".tmp")
		return "", err
	}
	return fmt.Sprintf("ok %s@%s %d KiB", mod, ver, st.Size()>>10), os.Rename(p+".tmp", p)
}

func get(u string, w io.Writer) error {
	r, err := client.Get(u)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", u, r.Status)
	}
	_, err = io.Copy(w, r.Body)
	return err
}

// escape spells a module path or version as the proxy protocol wants it: capitals become "!" and the small letter.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// rank orders versions: compatible before +incompatible, release before pre-release, then by number.
func rank(v string) (k [5]int) {
	inc := strings.HasSuffix(v, "+incompatible")
	v = strings.TrimSuffix(strings.TrimPrefix(v, "v"), "+incompatible")
	num, _, pre := strings.Cut(v, "-")
	if !inc {
		k[0] = 1
	}
	if !pre {
		k[1] = 1
	}
	for i, p := range strings.SplitN(num, ".", 3) {
		k[2+i], _ = strconv.Atoi(p)
	}
	return k
}

func newest(mod string, vs []string) string {
	best := ""
	var bk [5]int
	for _, v := range vs {
		// the Kubernetes libraries also carry tags of the main repository, which are years old
		if strings.HasPrefix(mod, "k8s.io/") && mod != "k8s.io/kubernetes" && !strings.Contains(mod, "klog") &&
			!strings.HasPrefix(v, "v0.") {
			continue
		}
		if k := rank(v); best == "" || less(bk, k) {
			best, bk = v, k
		}
	}
	return best
}

func less(a, b [5]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// proxy is the first module proxy of the Go environment, with a trailing slash.
func proxy() (string, error) {
	out, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		return "", err
	}
	p, _, _ := strings.Cut(strings.TrimSpace(string(out)), ",")
	if !strings.HasPrefix(p, "http") {
		return "", fmt.Errorf("GOPROXY %q is not a proxy address", p)
	}
	return strings.TrimRight(p, "/") + "/", nil
}
