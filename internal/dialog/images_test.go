package dialog

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"strobe/internal/chat"
	"strobe/internal/engine"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

func seeing(t *testing.T, arch string) *engine.Model {
	t.Helper()
	m, err := engine.Load(edit.Golden(t, arch).WithImages(t), engine.Options{Threads: 1, Drafter: "none"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// TestImagePlaces: rows take the place of the token that the template writes, between the tokens that belong around
// them; what a message spells is text.
func TestImagePlaces(t *testing.T) {
	for arch, around := range map[string][2]string{"qwen35": {"<|vision_start|>", "<|vision_end|>"},
		"gemma4": {"<|image>", "<image|>"}} {
		m := seeing(t, arch)
		f := For(m)
		one, two := testkit.PNG(t, 40, 33, 1), testkit.PNG(t, 50, 20, 2)
		p, err := f.Chat([]chat.Message{{Role: "user", Content: []chat.Part{ImagePart(one),
			{Type: "text", Text: "<|image_pad|><|image|> and "}, ImagePart(two)}}}, Options{ImageRows: 20})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Images) != 2 || slices.Contains(p.Tokens, m.Vision.Pad) {
			t.Fatalf("%s: %d images in %v", arch, len(p.Images), p.Tokens)
		}
		begin, _ := m.Tokenizer.Lookup(around[0])
		end, _ := m.Tokenizer.Lookup(around[1])
		rows := 0
		for i := range p.Images {
			x := &p.Images[i]
			rows += x.Len()
			if got := p.Tokens[x.At:][:x.Len()]; !slices.Equal(got, x.IDs(nil)) || p.Tokens[x.At-1] != begin ||
				p.Tokens[x.At+x.Len()] != end {
				t.Errorf("%s: image %d between tokens %d and %d", arch, i, p.Tokens[x.At-1], p.Tokens[x.At+x.Len()])
			}
		}
		below := 0
		for _, id := range p.Tokens {
			if id < 0 {
				below++
			}
		}
		if below != rows || p.Images[0].Len() == p.Images[1].Len() {
			t.Errorf("%s: %d tokens of images, %d rows", arch, below, rows)
		}
		if req := p.Request(engine.Request{}); len(req.Images) != 2 {
			t.Errorf("%s: %d images in the request", arch, len(req.Images))
		}
		again, err := f.Chat([]chat.Message{{Role: "user", Content: []chat.Part{ImagePart(one)}}}, Options{ImageRows: 20})
		if err != nil || !slices.Equal(again.Images[0].IDs(nil), p.Images[0].IDs(nil)) {
			t.Errorf("%s: the same image has other tokens: %v", arch, err)
		}
	}
}

// TestImagesNeedATemplate: a text that is continued has no place for images, and is not silently read without them.
func TestImagesNeedATemplate(t *testing.T) {
	f := For(seeing(t, "qwen35"))
	msgs := []chat.Message{{Role: "user", Content: []chat.Part{ImagePart(testkit.PNG(t, 40, 33, 1))}}}
	if _, err := f.Prompt(msgs, true, Options{}); err == nil || !strings.Contains(err.Error(), "chat template") {
		t.Errorf("a raw text: %v", err)
	}
	done := make(chan struct{})
	close(done)
	if _, err := f.Chat(msgs, Options{Done: done}); !errors.Is(err, ErrStopped) {
		t.Errorf("a prompt that is not wanted: %v", err)
	}
}

// TestImageURLs: base64 in all forms that clients send.
func TestImageURLs(t *testing.T) {
	data := testkit.PNG(t, 3, 3, 1)
	std := base64.StdEncoding.EncodeToString(data)
	for _, url := range []string{"data:image/png;base64," + std, std, "DATA:;BASE64," + std, "data:;base64," +
		base64.RawURLEncoding.EncodeToString(data), "data:;base64," + std[:20] + "\r\n" + std[20:]} {
		p := ImageURLPart(url, "low")
		if f, err := imageFile(&p, &Options{}); err != nil || string(f.Data) != string(data) || f.Detail != "low" {
			t.Errorf("%.30s: %d bytes, %v", url, len(f.Data), err)
		}
	}
	raw := chat.Part{Type: "input_image", Raw: []byte(`{"type":"input_image","image_url":"` + std + `","detail":"high"}`)}
	if f, err := imageFile(&raw, &Options{}); err != nil || f.Detail != "high" || len(f.Data) != len(data) {
		t.Errorf("input_image: %v", err)
	}
	odd := ImageURLPart(std, "huge")
	if _, err := imageFile(&odd, &Options{}); err == nil {
		t.Error("an unknown detail is taken")
	}
}
