package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"strobe/internal/engine"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/safetensors"
	pictures "strobe/internal/vision/picture"
)

// imageLike reads whose way of reading images is wanted.
func imageLike(s string) (pictures.Like, error) {
	switch s {
	case "reference":
		return pictures.Reference, nil
	case "llamacpp":
		return pictures.LlamaCpp, nil
	}
	return 0, usagef("--image-like %q: want reference or llamacpp", s)
}

// readImageIDs reads a JSON file with an array of token ids, in which null stands for the next image: -1 here.
func readImageIDs(path string) ([]int32, error) {
	data, err := platform.ReadFile(path, maxInput)
	if err != nil {
		return nil, err
	}
	var list []*int32
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: want a JSON array of token ids, and null for an image: %w", path, err)
	}
	ids := make([]int32, len(list))
	for i, id := range list {
		switch {
		case id == nil:
			ids[i] = -1
		case *id < 0:
			return nil, fmt.Errorf("%s: token id %d is below 0", path, *id)
		default:
			ids[i] = *id
		}
	}
	return ids, nil
}

// placeImages puts the rows of images into the places that ids have for them.
func placeImages(ids []int32, images []engine.Image) ([]int32, error) {
	var tokens []int32
	next := 0
	for _, id := range ids {
		if id >= 0 {
			tokens = append(tokens, id)
			continue
		}
		if next < len(images) {
			images[next].At = len(tokens)
			tokens = images[next].IDs(tokens)
		}
		next++
	}
	if next != len(images) {
		return nil, usagef("%d places for images (null) among the token ids, and %d of --image", next, len(images))
	}
	return tokens, nil
}

// imageLogits runs token ids with images through the model.
func imageLogits(cmd *cobra.Command, m *engine.Model, ids []int32, opt *logitsOptions) ([]safetensors.Tensor, error) {
	v, t := m.Vision, m.Target
	if v == nil {
		return nil, fmt.Errorf("%s: %w", m.Path, engine.ErrNoVision)
	}
	files := make([]engine.ImageFile, len(opt.images))
	for i, path := range opt.images {
		data, err := platform.ReadFile(path, int64(pictures.Defaults.Bytes))
		if err != nil {
			return nil, err
		}
		files[i] = engine.ImageFile{Data: data, Rows: opt.imageRows}
		if opt.imageRows == 0 {
			files[i].Rows = v.Trained()
		}
	}
	images, err := v.Open(cmd.Context(), files, t.Context)
	if err != nil {
		return nil, err
	}
	tokens, err := placeImages(ids, images)
	if err != nil {
		return nil, err
	}
	if len(tokens) > t.Context {
		return nil, &engine.ContextError{Prompt: len(tokens), Context: t.Context}
	}
	var tensors []safetensors.Tensor
	rows := make([]model.Image, len(images))
	for i := range images {
		p := &images[i]
		values, resized, err := v.Encode(cmd.Context(), p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", opt.images[i], err)
		}
		rows[i] = model.Image{At: p.At, W: p.W, H: p.H, Rows: values}
		name := func(s string) string { return fmt.Sprintf("%s.%d", s, i) }
		w, h := v.SourceSize(p)
		info := []int32{int32(w), int32(h), int32(resized.Width), int32(resized.Height)}
		tensors = append(tensors, floatTensor(name("embeddings"), values, p.Len(), t.Hidden),
			intTensor(name("positions"), imagePositions(t, rows[:i+1]), 3, p.Len()),
			safetensors.Tensor{Name: name("resized"), DType: "U8", Shape: []int{resized.Height, resized.Width, 3},
				Data: resized.Pix},
			intTensor(name("info"), append(info, imageInfo(t, p)...), 10))
	}
	logits, err := tokenLogits(cmd, t, tokens, rows, opt)
	if err != nil {
		return nil, err
	}
	return append(tensors, floatTensor("logits", logits, len(logits)/t.Vocab, t.Vocab)), nil
}

// tokenLogits runs tokens with images in passes that cut no image whose rows see each other, and returns the logits of
// the last ones.
func tokenLogits(cmd *cobra.Command, t *model.Model, tokens []int32, images []model.Image, opt *logitsOptions) (
	logits []float32, err error) {
	if err := t.Capture(nil); err != nil {
		return nil, err
	}
	seq := t.NewSeq()
	defer seq.Close()
	first := 0 // token whose logits are wanted
	if opt.last > 0 {
		first = max(0, len(tokens)-opt.last)
	}
	for from := 0; from < len(tokens); from = seq.Len() {
		if err := cmd.Context().Err(); err != nil {
			return nil, err
		}
		to := min(from+opt.batch, len(tokens))
		for i := range images {
			at, end := images[i].At, images[i].At+images[i].Len()
			if t.Mutual && to > at && to < end {
				if to = at; from == at {
					to = end
				}
			}
		}
		out, err := t.Forward([]model.Segment{{Seq: seq, Tokens: tokens[from:to], Images: images, Logits: model.LogitsAll}})
		if err != nil {
			return nil, err
		}
		if to > first {
			skip := max(0, first-from)
			logits = append(logits, t.Backend().Read(out.Logits.Slice(skip, to-from-skip))...)
		}
		if err := seq.CommitAll(); err != nil {
			return nil, err
		}
	}
	return logits, nil
}

// imagePositions are the three positions of the rows of the last image: all first ones, then the others.
func imagePositions(t *model.Model, images []model.Image) []int32 {
	p := &images[len(images)-1]
	n := p.Len()
	out := make([]int32, 3*n)
	for r := range n {
		at := [3]int32{int32(p.At + r), int32(p.At + r), int32(p.At + r)}
		if t.Axes {
			at = model.Positions(images, p.At+r)
		}
		for axis, v := range at {
			out[axis*n+r] = v
		}
	}
	return out
}

// imageInfo is the grid of an image as positions see it, its rows, the positions they take, and whether there are three
// axes of them, and rows that see each other.
func imageInfo(t *model.Model, p *engine.Image) []int32 {
	flag := func(b bool) int32 {
		if b {
			return 1
		}
		return 0
	}
	n := int32(p.Len())
	if t.Axes {
		return []int32{int32(p.W), int32(p.H), n, int32(max(p.W, p.H)), 1, flag(t.Mutual)}
	}
	return []int32{n, 1, n, n, 0, flag(t.Mutual)}
}
