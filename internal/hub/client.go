package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"strobe/internal/platform"
)

// DefaultEndpoint is the public hub.
const DefaultEndpoint = "https://huggingface.co"

// A Client talks to one hub and keeps files in one cache folder. Its fields are
// not to be changed while it is in use.
type Client struct {
	Endpoint string       // base address; empty means DefaultEndpoint
	Token    string       // access token, sent to Endpoint only; empty for public files
	Cache    string       // cache folder; required
	Offline  bool         // use the cache only
	HTTP     *http.Client // nil means one with sensible timeouts

	// Attempts is how often a download that makes no progress is tried; 0 means 5.
	Attempts int
	// Backoff is the wait before the second attempt, doubled each time; 0 means
	// half a second.
	Backoff time.Duration
	// Log gets one line for people when the hub is asked what a reference means, for every attempt that failed and is
	// repeated, and for files that have changed since an earlier Pull. It is called by the goroutine that resolves or
	// pulls; nil means silence.
	Log func(line string)

	symlink func(target, link string) error // for tests; nil means os.Symlink
}

// FromEnv is a client configured like the hub's Python tools: HF_ENDPOINT,
// HF_TOKEN, HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE, and the token file that
// logging in with those tools leaves.
func FromEnv() (*Client, error) {
	env := func(names ...string) string {
		for _, n := range names {
			if v := strings.TrimSpace(os.Getenv(n)); v != "" {
				return v
			}
		}
		return ""
	}
	c := &Client{Endpoint: env("HF_ENDPOINT"), Token: env("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
	switch strings.ToLower(env("HF_HUB_OFFLINE")) {
	case "1", "true", "yes", "on":
		c.Offline = true
	}
	home := env("HF_HOME")
	if home == "" {
		base := env("XDG_CACHE_HOME")
		if base == "" {
			user, err := os.UserHomeDir()
			if err != nil {
				return nil, fmt.Errorf("no home folder for the cache, set HF_HOME: %w", err)
			}
			base = filepath.Join(user, ".cache")
		}
		home = filepath.Join(base, "huggingface")
	}
	if c.Cache = env("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"); c.Cache == "" {
		c.Cache = filepath.Join(home, "hub")
	}
	if c.Token == "" {
		path := env("HF_TOKEN_PATH")
		if path == "" {
			path = filepath.Join(home, "token")
		}
		if b, err := platform.ReadFile(path, platform.MaxText); err == nil {
			c.Token = strings.TrimSpace(string(b))
		}
	}
	return c, nil
}

// A File is one file of a repository at one commit.
type File struct {
	Name string // path in the repository
	Size int64
	// Hash names the content: the SHA-256 for large files, the git blob id for
	// small ones.
	Hash string
}

// A Plan is what a reference means.
type Plan struct {
	Ref    Ref
	Commit string
	Files  []File
	// Path is where the model will be: the first file, or the folder of a
	// checkpoint.
	Path   string
	Folder bool // a checkpoint
	// Vision is the image encoder (mmproj) that the model's repository has beside it; nil if there is none.
	Vision *Plan
}

// Size is the number of bytes of all files.
func (p *Plan) Size() int64 {
	var n int64
	for _, f := range p.Files {
		n += f.Size
	}
	return n
}

// StatusError is an answer of the hub that is not a success.
type StatusError struct {
	Status  int
	Code    string // the hub's own code, such as "GatedRepo"
	Message string // one line
}

func (e *StatusError) Error() string { return e.Message }

// Resolve asks the hub which files a reference means. Offline it asks the cache.
func (c *Client) Resolve(ctx context.Context, ref string) (*Plan, error) {
	return c.resolve(ctx, ref, false)
}

// ResolveDrafter is Resolve for a drafter, which may lie beside models.
func (c *Client) ResolveDrafter(ctx context.Context, ref string) (*Plan, error) {
	return c.resolve(ctx, ref, true)
}

// Local is what the cache alone has for a reference, complete and ready to open; an error if that is not enough.
func (c *Client) Local(ref string, drafter bool) (*Plan, error) {
	offline := *c
	offline.Offline = true
	p, err := offline.resolve(context.Background(), ref, drafter)
	if err == nil && p.Folder { // nothing here says which files the hub has
		err = fmt.Errorf("%s: a checkpoint", ref)
	}
	return p, err
}

func (c *Client) resolve(ctx context.Context, ref string, drafter bool) (*Plan, error) {
	r, err := ParseRef(ref)
	if err != nil {
		return nil, err
	}
	if c.Cache == "" {
		return nil, errors.New("hub: no cache folder")
	}
	var commit string
	var files []File
	if c.Offline {
		commit, files, err = c.cached(r)
	} else {
		c.log("%s: asking %s", r.Repo, c.host())
		if commit, err = c.commit(ctx, r); err == nil {
			files, err = c.tree(ctx, r, commit)
		}
	}
	if err != nil {
		return nil, err
	}
	byName := make(map[string]File, len(files))
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
		byName[f.Name] = f
	}
	chosen, folder, err := choose(r, names, drafter)
	if err != nil {
		return nil, err
	}
	p := &Plan{Ref: r, Commit: commit, Folder: folder}
	for _, name := range chosen {
		if err := checkPath(name); err != nil {
			return nil, fmt.Errorf("%s: file name from the server: %w", r.Repo, err)
		}
		p.Files = append(p.Files, byName[name])
	}
	p.Path = c.snapshot(r.Repo, commit)
	if !folder {
		p.Path = filepath.Join(p.Path, filepath.FromSlash(chosen[0]))
	}
	if name := chooseVision(names); name != "" && !drafter && !folder && !IsVision(chosen[0]) && checkPath(name) == nil {
		v := *p
		v.Ref.File, v.Files = name, []File{byName[name]}
		v.Path = filepath.Join(c.snapshot(r.Repo, commit), filepath.FromSlash(name))
		p.Vision = &v
	}
	return p, nil
}

var commitPattern = regexp.MustCompile(`^[0-9a-f]{40,64}$`)

// commit is what the revision stands for now.
func (c *Client) commit(ctx context.Context, r Ref) (string, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	addr, err := c.url("api", "models", r.Repo, "revision", url.PathEscape(r.Revision))
	if err != nil {
		return "", err
	}
	if _, err := c.getJSON(ctx, r, addr, &info); err != nil {
		return "", err
	}
	if !commitPattern.MatchString(info.SHA) {
		return "", fmt.Errorf("%s: the server's commit %q is not a hash", r.Repo, clip(info.SHA))
	}
	return info.SHA, nil
}

// maxPages bounds a listing; a page of the hub has up to 1000 entries.
const maxPages = 200

func (c *Client) tree(ctx context.Context, r Ref, commit string) ([]File, error) {
	addr, err := c.url("api", "models", r.Repo, "tree", commit)
	if err != nil {
		return nil, err
	}
	addr += "?recursive=true"
	var out []File
	for range maxPages {
		var page []struct {
			Type string
			Path string
			Size int64
			OID  string
			LFS  *struct {
				OID  string
				Size int64
			}
		}
		next, err := c.getJSON(ctx, r, addr, &page)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			if e.Type != "file" {
				continue
			}
			f := File{Name: e.Path, Size: e.Size, Hash: e.OID}
			if e.LFS != nil {
				f.Size, f.Hash = e.LFS.Size, e.LFS.OID
			}
			out = append(out, f)
		}
		if next == "" {
			return out, nil
		}
		addr = next
	}
	return nil, fmt.Errorf("%s: the list of files has more than %d pages", r.Repo, maxPages)
}

func (c *Client) log(format string, args ...any) {
	if c.Log != nil {
		c.Log(fmt.Sprintf(format, args...))
	}
}

// logRetry says that an attempt is repeated, and why.
func (c *Client) logRetry(what string, reason error, try int, wait time.Duration) {
	c.log("%s: %s; attempt %d of %d in %v", what, clip(plainNetErr(reason).Error()), try+1, c.attempts(), wait)
}

// url joins path segments, which are escaped already, to the endpoint.
func (c *Client) url(segments ...string) (string, error) {
	end := cmp.Or(c.Endpoint, DefaultEndpoint)
	u, err := url.Parse(end)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("hub endpoint %q is not an http or https address", end)
	}
	return strings.TrimRight(end, "/") + "/" + strings.Join(segments, "/"), nil
}

// resolveURL is where a file's content is.
func (c *Client) resolveURL(r Ref, commit, name string) (string, error) {
	segs := strings.Split(name, "/")
	for i := range segs {
		segs[i] = url.PathEscape(segs[i])
	}
	return c.url(r.Repo, "resolve", commit, strings.Join(segs, "/"))
}

// maxJSON bounds an answer of the API.
const maxJSON = 64 << 20

// getJSON decodes an answer and returns the address of the next page.
func (c *Client) getJSON(ctx context.Context, r Ref, addr string, v any) (next string, err error) {
	resp, err := c.retry(ctx, r.Repo, func() (*http.Response, error) { return c.do(ctx, http.MethodGet, addr, nil) })
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Repo, plainNetErr(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", statusErr(r, resp, c.Token != "")
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxJSON+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Repo, plainNetErr(err))
	}
	if len(body) > maxJSON {
		return "", fmt.Errorf("%s: the server's answer is over %d bytes", r.Repo, maxJSON)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return "", fmt.Errorf("%s: the server's answer is not the JSON expected: is %s a hub?", r.Repo, c.host())
	}
	return c.nextPage(r, resp)
}

var nextPattern = regexp.MustCompile(`<([^>]+)>\s*;[^,]*\brel="?next"?`)

// nextPage reads the Link header. Another host would get our token, so it is
// refused.
func (c *Client) nextPage(r Ref, resp *http.Response) (string, error) {
	m := nextPattern.FindStringSubmatch(resp.Header.Get("Link"))
	if m == nil {
		return "", nil
	}
	u, err := resp.Request.URL.Parse(m[1])
	if err != nil || u.Host != resp.Request.URL.Host || u.Scheme != resp.Request.URL.Scheme {
		return "", fmt.Errorf("%s: the list of files continues at another host, %q", r.Repo, clip(m[1]))
	}
	return u.String(), nil
}

func (c *Client) host() string {
	end := cmp.Or(c.Endpoint, DefaultEndpoint)
	if u, err := url.Parse(end); err == nil {
		return u.Host
	}
	return end
}

var defaultHTTP = &http.Client{Transport: func() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	return t
}()}

func (c *Client) client() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return defaultHTTP
}

// do sends one request.
func (c *Client) do(ctx context.Context, method, addr string, header map[string]string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, addr, nil)
	if err != nil {
		return nil, err
	}
	c.setHeaders(req, header)
	client := *c.client()
	client.CheckRedirect = c.checkRedirect
	return client.Do(req)
}

const maxRedirects = 10

// checkRedirect refuses to leave encryption, and leaves the token behind when a redirect leads away from the endpoint:
// net/http would send it to another port of the same host, and to hosts below it.
func (c *Client) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("too many redirects")
	}
	if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("the server redirects from https to %s", req.URL.Scheme)
	}
	if !c.isEndpoint(req.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// isEndpoint reports whether an address has the endpoint's protocol, host and port.
func (c *Client) isEndpoint(u *url.URL) bool {
	end, err := url.Parse(cmp.Or(c.Endpoint, DefaultEndpoint))
	return err == nil && u.Scheme == end.Scheme && strings.EqualFold(u.Host, end.Host)
}

func (c *Client) setHeaders(req *http.Request, header map[string]string) {
	req.Header.Set("User-Agent", "strobe")
	if c.Token != "" && c.isEndpoint(req.URL) { // a page of a list may be elsewhere
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
}

// retry repeats a request after network errors and answers that ask for it. what is named in the log.
func (c *Client) retry(ctx context.Context, what string, send func() (*http.Response, error)) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := send()
		if err == nil && !temporary(resp.StatusCode) || try >= c.attempts() || ctx.Err() != nil {
			return resp, err
		}
		wait, reason := c.backoff(try), err
		if err == nil {
			reason = answered(resp)
			if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && s <= 60 {
				wait = max(wait, time.Duration(s)*time.Second)
			}
			resp.Body.Close()
		}
		c.logRetry(what, reason, try, wait)
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// answered is a status as an error, in our words: a server may write anything beside its number.
func answered(resp *http.Response) error {
	return fmt.Errorf("the server answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
}

func temporary(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500 &&
		status != http.StatusNotImplemented
}

func (c *Client) attempts() int {
	if c.Attempts > 0 {
		return c.Attempts
	}
	return 5
}

func (c *Client) backoff(try int) time.Duration {
	d := c.Backoff
	if d <= 0 {
		d = 500 * time.Millisecond
	}
	return min(d<<min(try-1, 6), 30*time.Second)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// statusErr turns an answer into one line that says what to do.
func statusErr(r Ref, resp *http.Response, hasToken bool) error {
	e := &StatusError{Status: resp.StatusCode, Code: resp.Header.Get("X-Error-Code")}
	detail := clip(strings.Join(strings.Fields(resp.Header.Get("X-Error-Message")), " "))
	login := "set HF_TOKEN to an access token"
	if hasToken {
		login = "the token has no access to it"
	}
	switch {
	case e.Code == "EntryNotFound":
		e.Message = "the file is not in the repository"
	case e.Code == "RevisionNotFound":
		e.Message = fmt.Sprintf("there is no revision %q", r.Revision)
	case e.Code == "GatedRepo":
		e.Message = "access to the repository must be requested on its page; then " + login
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		e.Message = "there is no such repository, or it is private; check the name, or " + login
		if hasToken {
			e.Message = "there is no such repository, or " + login
		}
	case resp.StatusCode == http.StatusNotFound:
		e.Message = "there is no such repository"
	case resp.StatusCode == http.StatusTooManyRequests:
		e.Message = "the server asks to slow down; try again later"
	default:
		e.Message = answered(resp).Error()
		if detail != "" {
			e.Message += ": " + detail
		}
	}
	return fmt.Errorf("%s: %w", r.Repo, e)
}

// plainNetErr drops the address net/http puts into errors: it may carry a
// signature, and the caller names the repository anyway.
func plainNetErr(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return fmt.Errorf("host %s cannot be found; is the network up?", dns.Name)
	}
	return err
}
