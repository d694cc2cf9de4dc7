package dialog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"strobe/internal/chat"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// ImagePart is a part of a message that shows an image: the bytes of its file.
func ImagePart(data []byte) chat.Part {
	return ImageURLPart("data:;base64,"+base64.StdEncoding.EncodeToString(data), "")
}

// ImageURLPart is a part of a message that shows the image at a URL, which may be a data URL, in OpenAI's shape.
func ImageURLPart(url, detail string) chat.Part {
	type image struct {
		URL    string `json:"url"`
		Detail string `json:"detail,omitempty"`
	}
	raw, _ := json.Marshal(struct {
		Type  string `json:"type"`
		Image image  `json:"image_url"`
	}{"image_url", image{url, detail}}) // strings always can be written
	return chat.Part{Type: "image_url", Raw: raw}
}

// isImage reports whether a part shows an image, under any of the names that APIs have for it.
func isImage(p *chat.Part) bool {
	return p.Type == "image_url" || p.Type == "input_image" || p.Type == "image"
}

// ErrNoFetch refuses images at URLs where nothing was said of them.
var ErrNoFetch = errors.New("images at URLs are not fetched here; send the image itself, as data:image/png;base64,...")

// imageFile reads the image of a part.
func imageFile(p *chat.Part, o *Options) (f engine.ImageFile, err error) {
	var v struct {
		URL    json.RawMessage `json:"image_url"`
		Image  string          `json:"image"`
		Detail string          `json:"detail"`
	}
	if err := json.Unmarshal(p.Raw, &v); err != nil {
		return f, errors.New("must have an image_url")
	}
	url := v.Image
	if json.Unmarshal(v.URL, &url) != nil && len(v.URL) > 0 {
		var u struct{ URL, Detail string }
		if json.Unmarshal(v.URL, &u) != nil {
			return f, errors.New("image_url must be a string or an object with a url")
		}
		if url = u.URL; u.Detail != "" {
			v.Detail = u.Detail
		}
	}
	switch v.Detail {
	case "", "auto", "low", "high", "original":
	default:
		return f, fmt.Errorf("detail %q is none of auto, low and high", v.Detail)
	}
	f.Detail, f.Rows = v.Detail, o.ImageRows
	switch scheme, rest, ok := strings.Cut(url, ":"); {
	case url == "":
		return f, errors.New("image_url.url is missing")
	case !ok:
		f.Data, err = decodeBase64(url)
	case strings.EqualFold(scheme, "data"):
		head, body, _ := strings.Cut(rest, ",")
		if !strings.HasSuffix(strings.ToLower(head), ";base64") {
			return f, errors.New("the data URL must be base64: data:image/png;base64,...")
		}
		f.Data, err = decodeBase64(body)
	case o.Fetch == nil:
		return f, ErrNoFetch
	default:
		f.Data, err = o.Fetch(url)
	}
	return f, err
}

// decodeBase64 reads base64 of either alphabet, with or without padding and line breaks.
func decodeBase64(s string) ([]byte, error) {
	b := bytes.Map(func(r rune) rune {
		switch r {
		case '\n', '\r', ' ', '=':
			return -1
		case '-':
			return '+'
		case '_':
			return '/'
		}
		return r
	}, []byte(s))
	n, err := base64.RawStdEncoding.Decode(b, b)
	if err != nil {
		return nil, fmt.Errorf("the image is not valid base64: %w", err)
	}
	return b[:n], nil
}

// shown is the images of a conversation.
type shown struct {
	files  []engine.ImageFile
	fields []string // where each was
	images []engine.Image
	tool   bool // a result of a tool has one
}

// takeImages replaces the images of messages by parts that templates know, and reads them. A model without an encoder
// refuses them; in results of tools, which a client cannot change, it mentions them instead. Other parts that are no
// text are refused by all models.
func (f *Format) takeImages(msgs []chat.Message, o *Options) ([]chat.Message, *shown, error) {
	s, out := &shown{}, slices.Clone(msgs)
	for i, m := range msgs {
		parts, _ := m.Content.([]chat.Part)
		changed := slices.Clone(parts)
		for j := range parts {
			p := &parts[j]
			field := cmp.Or(p.At, fmt.Sprintf("messages[%d].content[%d]", i, j))
			switch {
			case p.IsText():
			case f.model.Vision != nil && isImage(p):
				if len(s.files) >= engine.MaxImages {
					return nil, nil, &chat.FieldError{Field: field, Msg: fmt.Sprintf("a request may have %d images",
						engine.MaxImages)}
				}
				file, err := imageFile(p, o)
				if err != nil {
					return nil, nil, &chat.FieldError{Field: field, Msg: err.Error()}
				}
				s.files, s.fields = append(s.files, file), append(s.fields, field)
				s.tool = s.tool || m.Role == "tool"
				changed[j] = chat.Part{Type: "image", Raw: json.RawMessage(`{"type":"image"}`)}
			case m.Role == "tool":
				changed[j] = chat.Part{Type: "text", Text: Placeholder(p.Type)}
			case p.At != "":
				return nil, nil, &chat.FieldError{Field: field, Msg: "images are not supported; " + engine.ErrNoVision.Error()}
			default:
				reads := "text only"
				if f.model.Vision != nil {
					reads = "text and images"
				}
				return nil, nil, &chat.FieldError{Field: field + ".type",
					Msg: fmt.Sprintf("%q is not supported; this model reads %s", p.Type, reads)}
			}
		}
		if parts != nil {
			out[i].Content = changed
		}
	}
	if len(s.files) == 0 {
		return out, s, nil
	}
	ctx, cancel := waiting(o.Done)
	defer cancel()
	var err error
	s.images, err = f.model.Vision.Open(ctx, s.files, o.Context)
	if bad := (*engine.ImageError)(nil); errors.As(err, &bad) {
		err = &chat.FieldError{Field: s.fields[bad.Index], Msg: bad.Err.Error()}
	} else if errors.Is(err, context.Canceled) {
		err = ErrStopped
	}
	return out, s, err
}

// fromTools moves images of tools' results to a message of the user behind them, for templates that show none there.
func fromTools(msgs []chat.Message) (out []chat.Message) {
	var moved []chat.Part
	flush := func() {
		if moved != nil {
			out = append(out, chat.Message{Role: "user", Content: moved})
		}
		moved = nil
	}
	for _, m := range msgs {
		if m.Role != "tool" {
			flush()
		}
		if parts, ok := m.Content.([]chat.Part); ok && m.Role == "tool" {
			parts = slices.Clone(parts)
			for i, p := range parts {
				if p.Type == "image" {
					moved = append(moved, p)
					parts[i] = chat.Part{Type: "text", Text: "[image: see the next message]"}
				}
			}
			m.Content = parts
		}
		out = append(out, m)
	}
	flush()
	return out
}

// pads counts the places that a template has made for images.
func (f *Format) pads(tokens []int32) (n int) {
	for _, id := range tokens {
		if id == f.model.Vision.Pad {
			n++
		}
	}
	return n
}

// place puts the rows of the images where the template has put their tokens.
func (s *shown) place(v *engine.Vision, tokens []int32) []int32 {
	var out []int32
	next := 0
	for _, id := range tokens {
		if id != v.Pad {
			out = append(out, id)
			continue
		}
		if v.Begin >= 0 {
			out = append(out, v.Begin)
		}
		s.images[next].At = len(out)
		out = s.images[next].IDs(out)
		if v.End >= 0 {
			out = append(out, v.End)
		}
		next++
	}
	return out
}

// Media returns the prompt of a text that is to be continued, with images between its pieces: base64, or data URLs.
// Control tokens in the text count, as in any prompt that its author writes as a whole.
func (f *Format) Media(pieces, data []string, o Options) (*Prompt, error) {
	v := f.model.Vision
	switch {
	case v == nil:
		return nil, &chat.FieldError{Field: "multimodal_data", Msg: engine.ErrNoVision.Error()}
	case len(pieces) != len(data)+1:
		return nil, &chat.FieldError{Field: "multimodal_data", Msg: fmt.Sprintf("has %d images; the text has places for %d",
			len(data), len(pieces)-1)}
	}
	m := chat.Message{Role: "user"}
	var parts []chat.Part
	for i, s := range data {
		p := ImageURLPart(s, "")
		p.At = fmt.Sprintf("multimodal_data[%d]", i)
		parts = append(parts, p)
	}
	m.Content = parts
	_, images, err := f.takeImages([]chat.Message{m}, &o)
	if err != nil {
		return nil, err
	}
	var ids []int32
	for i, text := range pieces {
		opt := tokenizer.EncodeOptions{AddSpecial: i == 0, ParseSpecial: true, Done: o.Done}
		ids = append(ids, f.model.Tokenizer.Encode(text, opt)...)
		if i < len(data) {
			ids = append(ids, v.Pad)
		}
	}
	if f.pads(ids) != len(data) {
		return nil, &chat.FieldError{Field: "prompt_string", Msg: "has tokens of images in its text"}
	}
	return &Prompt{Text: strings.Join(pieces, ""), Tokens: images.place(v, ids), Images: images.images}, stopped(o.Done)
}
