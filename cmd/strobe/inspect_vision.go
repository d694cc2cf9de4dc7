package main

import (
	"fmt"
	"strings"

	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/vision"
	pictures "strobe/internal/vision/picture" // this package has a picture of its own
)

// visionInfo is what an mmproj file says about its image encoder.
type visionInfo struct {
	Projector string       `json:"projector"`
	Blocks    int          `json:"blocks"`
	Width     int          `json:"width"`
	Heads     int          `json:"heads,omitempty"`
	FFN       int          `json:"feed_forward,omitempty"`
	Patch     int          `json:"patch,omitempty"`       // pixels of the side of a patch
	Token     int          `json:"token_side,omitempty"`  // pixels of the side of the square that becomes a token
	TextWidth int          `json:"text_width,omitempty"`  // of the models that it fits
	Most      int          `json:"most_tokens,omitempty"` // of an image
	Images    []imageSizes `json:"images,omitempty"`
	Audio     string       `json:"audio_projector,omitempty"`
}

// imageSizes is what becomes of an image of some size.
type imageSizes struct {
	Image   string `json:"image"`
	Resized string `json:"resized"`
	Tokens  int    `json:"tokens"`
}

// isVision reports whether a file is an mmproj file.
func isVision(f *gguf.File) bool { return f.Arch() == "clip" }

// readVision says what the image encoder of an mmproj file is, and whether it loads.
func (r *report) readVision(f *gguf.File) {
	v := &visionInfo{}
	r.Vision = v
	for _, key := range []string{"clip.vision.projector_type", "clip.projector_type"} {
		if name, ok, _ := f.String(key); ok && v.Projector == "" {
			v.Projector = name
		}
	}
	v.Audio, _, _ = f.String("clip.audio.projector_type")
	k := archKeys{f, "clip.vision"}
	v.Blocks, _ = k.int("block_count")
	v.Width, _ = k.int("embedding_length")
	v.Heads, _ = k.int("attention.head_count")
	v.FFN, _ = k.int("feed_forward_length")
	v.Patch, _ = k.int("patch_size")
	v.TextWidth, _ = k.int("projection_dim")
	if v.Audio != "" {
		r.note("it hears, too (%s); sound is not supported, and that part is not loaded", v.Audio)
	}
	if len(f.Tensors()) == 0 {
		r.note("the file holds no weights, only metadata")
		return
	}
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	e, err := vision.Open(f, b, vision.Reference)
	if err != nil {
		r.fail("the image encoder does not load: %v", err)
		return
	}
	r.ok("the image encoder loads")
	v.Token, v.TextWidth, v.Most = e.Factor(), e.Out, e.MaxTokens
	rule, most := pictures.SizeQwen, e.MaxTokens
	if strings.HasPrefix(v.Projector, "gemma") {
		rule, most = pictures.SizeGemma, gemmaBudget
	}
	for _, size := range [][2]int{{224, 224}, {640, 480}, {1920, 1080}, {4000, 3000}} {
		w, h := pictures.Size(size[0], size[1], v.Token, e.MinTokens, most, rule)
		v.Images = append(v.Images, imageSizes{
			Image: fmt.Sprintf("%dx%d", size[0], size[1]), Resized: fmt.Sprintf("%dx%d", w, h),
			Tokens: w / v.Token * (h / v.Token),
		})
	}
}

// gemmaBudget is the number of tokens that Gemma 4's reference gives an image unless it is asked for another.
const gemmaBudget = 280

// print writes the rows of an mmproj file.
func (v *visionInfo) print(row func(name, format string, args ...any)) {
	switch {
	case v.Blocks > 0:
		heads := ""
		if v.Heads > 0 {
			heads = fmt.Sprintf(", %d heads of %d", v.Heads, v.Width/v.Heads)
		}
		row("sees with", "%s: %d blocks, width %d%s, feed-forward %d", orText(v.Projector, "no projector"), v.Blocks, v.Width,
			heads, v.FFN)
	default:
		row("sees with", "%s: no blocks, width %d", orText(v.Projector, "no projector"), v.Width)
	}
	row("goes with", "text models of width %d", v.TextWidth)
	if v.Token > 0 {
		row("tokens", "one for %dx%d pixels (patches of %d), at most %d for an image", v.Token, v.Token, v.Patch, v.Most)
	}
	for _, x := range v.Images {
		row("", "%-9s becomes %-9s %5d tokens", x.Image, x.Resized, x.Tokens)
	}
}

// checkVisionTarget checks whether an image encoder fits the model t.
func (r *report) checkVisionTarget(t *gguf.File) {
	width, ok := archKeys{t, t.Arch()}.int("embedding_length")
	switch {
	case !ok:
		r.fail("the target does not say how wide it is")
	case width != r.Vision.TextWidth:
		r.fail("the image encoder is for text models of width %d, the target has %d", r.Vision.TextWidth, width)
	default:
		r.ok("image encoder and target have width %d", width)
	}
}
