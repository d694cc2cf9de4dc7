package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/vision/picture"
)

// All protocols turn images into parts of OpenAI's shape. Package dialog reads them, upstreams get them as they are.

// imagePart is an image of a message; at is what the client calls it.
func imagePart(url, detail, at string) chat.Part {
	p := dialog.ImageURLPart(url, detail)
	p.At = at
	return p
}

// anthropicSource is the image of Anthropic's block of type image.
type anthropicSource struct {
	Type  string `json:"type"`
	Media string `json:"media_type"`
	Data  string `json:"data"`
	URL   string `json:"url"`

	Content json.RawMessage `json:"content,omitempty"` // of a document that consists of blocks
}

func (s *anthropicSource) part(at string) (p chat.Part, err error) {
	switch {
	case s == nil:
		return p, invalid(at+".source", "is missing")
	case s.Type == "base64" && s.Data != "":
		return imagePart("data:"+s.Media+";base64,"+s.Data, "", at), nil
	case s.Type == "url" && s.URL != "":
		return imagePart(s.URL, "", at), nil
	case s.Type == "base64" || s.Type == "url":
		return p, invalid(at+".source", "has no image")
	}
	return p, invalid(at+".source.type", "%q is neither base64 nor url", s.Type)
}

// contents are the pieces of a message: text alone becomes one string, as templates know it best.
type contents struct {
	parts  []chat.Part
	images bool
}

func (c *contents) text(s string) { c.parts = append(c.parts, chat.Part{Type: "text", Text: s}) }

func (c *contents) image(p chat.Part) {
	c.parts = append(c.parts, p)
	c.images = true
}

// content is what a message has of it.
func (c *contents) content() any {
	if c.images {
		return c.parts
	}
	m := chat.Message{Content: c.parts}
	return m.Text()
}

// ollamaContent is a text with Ollama's images, which come first.
func ollamaContent(text string, images []string, at string) any {
	var c contents
	for i, data := range images {
		c.image(imagePart("data:;base64,"+data, "", at+index(i)))
	}
	c.text(text)
	return c.content()
}

// responseImage is what a part of type input_image of the Responses API has.
type responseImage struct {
	ImageURL string `json:"image_url"`
	Detail   string `json:"detail"`
}

func (r *responseImage) part(at string) (p chat.Part, err error) {
	if r.ImageURL == "" {
		return p, invalid(at+".image_url", "is missing; files that were uploaded before (file_id) are not known here")
	}
	return imagePart(r.ImageURL, r.Detail, at), nil
}

// Limits of what is fetched for a request.
const (
	fetchTime      = 10 * time.Second
	fetchRedirects = 3
)

// fetch returns how images at URLs are read: from the web if FetchImages is set, from files below MediaPath. nil
// refuses both.
func (s *core) fetch(ctx context.Context) func(string) ([]byte, error) {
	if !s.cfg.FetchImages && s.cfg.MediaPath == "" {
		return nil
	}
	return func(address string) ([]byte, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, errors.New("the URL of the image cannot be read")
		}
		switch {
		case u.Scheme == "file" && s.cfg.MediaPath != "":
			return readMedia(s.cfg.MediaPath, u.Path)
		case (u.Scheme == "http" || u.Scheme == "https") && s.cfg.FetchImages:
			return fetchImage(ctx, imageClient, u.String())
		}
		return nil, fmt.Errorf("images at %s URLs are not read here; send the image itself, as data:image/png;base64,...",
			u.Scheme)
	}
}

// readMedia reads a file below a folder. Links that lead out of it are refused.
func readMedia(folder, path string) ([]byte, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, errors.New("the folder of media files cannot be read")
	}
	defer root.Close()
	f, err := root.Open(filepath.FromSlash(strings.TrimLeft(path, "/")))
	if err != nil {
		return nil, errors.New("there is no such file in the folder of media files")
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	return readImage(f)
}

// readImage reads an image up to the limit of image files.
func readImage(r io.Reader) ([]byte, error) {
	limit := int64(picture.Defaults.Bytes)
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("the image has more than %d bytes", limit)
	}
	return data, err
}

// imageClient fetches images that clients name: it talks to public addresses only, whatever a name resolves to and
// wherever a redirect leads, so that no client reaches the machine's own network through this server.
var imageClient = &http.Client{
	Timeout: fetchTime,
	Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: fetchTime, Control: func(_, address string, _ syscall.RawConn) error {
			return publicAddress(address)
		}}).DialContext,
		MaxConnsPerHost:        4,
		ResponseHeaderTimeout:  fetchTime,
		MaxResponseHeaderBytes: 1 << 16,
	},
	CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > fetchRedirects {
			return errors.New("too many redirects")
		}
		if r.URL.Scheme != "http" && r.URL.Scheme != "https" {
			return errors.New("a redirect leads away from the web")
		}
		return nil
	},
}

// publicAddress refuses addresses that are not on the public internet.
func publicAddress(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap()
	shared := netip.MustParsePrefix("100.64.0.0/10") // behind a provider's router
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || shared.Contains(ip) {
		return fmt.Errorf("%s is not a public address", ip)
	}
	return nil
}

func fetchImage(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("the URL of the image cannot be read")
	}
	req.Header.Set("Accept", "image/*")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the image could not be fetched: %w", errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the image could not be fetched: %s", resp.Status)
	}
	return readImage(resp.Body)
}

// mediaMark stands for the next image in the text of llama.cpp's native prompts.
const mediaMark = "<__media__>"

// mediaPrompt is a text with images: llama.cpp's prompt_string with multimodal_data.
func (m *model) mediaPrompt(ctx context.Context, text string, data []string, at string) (*dialog.Prompt, error) {
	o := dialog.Options{Context: m.engine.Config().Context, Done: ctx.Done()}
	p, err := m.format.Media(strings.Split(text, mediaMark), data, o)
	var field *chat.FieldError
	if errors.As(err, &field) {
		field.Field = at + "." + field.Field
	}
	return p, err
}
