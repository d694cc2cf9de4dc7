package engine

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"strobe/internal/backend"
	"strobe/internal/device"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/vision"
	"strobe/internal/vision/picture"
)

// Vision is the image encoder of a model. Its methods may be called from any goroutine, but encode, which belongs to
// the one that drives its device.
type Vision struct {
	Path    string
	Default int // rows of an image, at most, where a request does not say
	// Pad is the token that a chat template writes for an image. Around the rows that take its place come Begin and End,
	// where they are not -1.
	Pad, Begin, End int32

	enc   *vision.Encoder
	file  *gguf.File
	like  picture.Like
	b     backend.Backend
	own   bool     // no other part of the model runs on its device
	print [32]byte // of the file, and of how images are read
	limit int      // bytes of encoded images that are remembered
	busy  bool     // an image is being encoded; for the goroutine that owns the model
	began func()   // called when an image is encoded, in tests

	mu    sync.Mutex
	known lru[grid]      // sizes of images that were decoded without an error
	rows  lru[[]float32] // encoded images
}

// grid is the rows of an image, side by side and below each other.
type grid struct{ w, h int }

// Images that were seen before are not decoded again while the prefix cache has them. Encoded ones are remembered up to
// a limit: an image of 4,096 rows takes 84 MB in a model of width 5,120.
const (
	knownImages = 4096
	rowsBytes   = 256 << 20
	// MaxImages is how many images a request may have, and maxRowBytes how much memory their rows may take.
	MaxImages   = 256
	maxRowBytes = 512 << 20
	// heldPixels is how many bytes of decoded images a request keeps until they are encoded. Others are decoded again.
	heldPixels = 64 << 20
)

// Image is an image of a request: its place among the tokens and the file it comes from.
type Image struct {
	At   int // index of the first row in Request.Tokens
	W, H int // grid of its rows

	key    [32]byte // of the file, its budget and the encoder
	data   []byte
	budget int
	pixels *picture.Image // resized; nil for one that is decoded when its rows are needed
}

// Len is the number of rows.
func (p *Image) Len() int { return p.W * p.H }

// IDs appends the tokens that stand for the rows. They are below -1, which stands for the end of a text, and are made
// of the image, so that texts with the same images are the same tokens.
func (p *Image) IDs(ids []int32) []int32 {
	var block [36]byte
	copy(block[:], p.key[:])
	for r := range p.Len() {
		binary.LittleEndian.PutUint32(block[32:], uint32(r))
		h := sha256.Sum256(block[:])
		ids = append(ids, min(int32(binary.LittleEndian.Uint32(h[:])|1<<31), -2))
	}
	return ids
}

// insideImage reports whether tokens[n] goes on with an image that tokens[n-1] belongs to. Images always have a token
// of text between them.
func insideImage(tokens []int32, n int) bool {
	return n > 0 && n < len(tokens) && tokens[n-1] < 0 && tokens[n] < 0
}

// beforeImage is n, or where the image begins that a cut after n tokens would divide.
func beforeImage(tokens []int32, n int) int {
	for insideImage(tokens, n) {
		n--
	}
	return n
}

// ImageError is what is wrong with an image of a request.
type ImageError struct {
	Index int // of the image, from 0
	Err   error
}

func (e *ImageError) Error() string { return fmt.Sprintf("image %d: %v", e.Index+1, e.Err) }
func (e *ImageError) Unwrap() error { return e.Err }

// ImageFile is an image as a client sends it.
type ImageFile struct {
	Data   []byte
	Detail string // low, high or auto, as OpenAI has it; "" is auto
	Rows   int    // at most; 0 leaves it to Detail
}

// lowDetail is the rows of images that clients want to be cheap: OpenAI's for Qwen, the smallest budget of Gemma.
const lowDetail = 256

// rowsFor is how many rows an image gets at most.
func (v *Vision) rowsFor(f *ImageFile) int {
	n := f.Rows
	if n <= 0 {
		switch f.Detail {
		case "low":
			n = min(lowDetail, v.Default)
			if v.gemma() {
				n = v.enc.MinTokens
			}
		case "high", "original":
			n = v.enc.MaxTokens
		default:
			n = v.Default
		}
	}
	return min(n, v.enc.MaxTokens)
}

// Trained is the largest number of rows of an image in the model's reference, whatever the device.
func (v *Vision) Trained() int {
	if v.gemma() && v.like == picture.Reference {
		return gemmaRows
	}
	return v.enc.MaxTokens
}

func (v *Vision) gemma() bool { return v.Begin >= 0 }

// Open checks the images of a request and returns them without places. limit is how many rows they may have together.
func (v *Vision) Open(ctx context.Context, files []ImageFile, limit int) ([]Image, error) {
	if len(files) > MaxImages {
		return nil, fmt.Errorf("%d images; a request may have %d", len(files), MaxImages)
	}
	images, rows, held := make([]Image, len(files)), 0, 0
	for i := range files { // sizes first: what does not fit is not decoded
		p, f := &images[i], &files[i]
		p.data, p.budget = f.Data, v.rowsFor(f)
		if err := v.size(p); err != nil {
			return nil, &ImageError{i, err}
		}
		if rows += p.Len(); limit > 0 && rows >= limit {
			return nil, &ContextError{Prompt: rows, Context: limit}
		}
		if most := maxRowBytes / (4 * v.enc.OutWidth()); rows > most {
			return nil, &ImageError{i, fmt.Errorf("the images of a request may have %d tokens together; send fewer, or "+
				"smaller ones (image_max_tokens)", most)}
		}
		h := sha256.New()
		h.Write(v.print[:])
		binary.Write(h, binary.LittleEndian, int64(p.budget))
		h.Write(p.data)
		h.Sum(p.key[:0])
	}
	for i := range images {
		p := &images[i]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v.mu.Lock()
		_, known := v.known.get(p.key)
		v.mu.Unlock()
		if known {
			continue
		}
		pixels, err := v.decode(p)
		if err != nil {
			return nil, &ImageError{i, err}
		}
		if held += len(pixels.Pix); held <= heldPixels {
			p.pixels = pixels
		}
		v.mu.Lock()
		v.known.put(p.key, grid{p.W, p.H}, 1, knownImages)
		v.mu.Unlock()
	}
	return images, nil
}

// size finds the grid of an image without decoding it.
func (v *Vision) size(p *Image) error {
	w, h, err := v.like.Config(p.data, picture.Limits{})
	if err != nil {
		return err
	}
	p.W, p.H, err = v.enc.Grid(v.resized(w, h, p.budget))
	return err
}

// resized is the size to which an image of w x h pixels is resized.
func (v *Vision) resized(w, h, budget int) (int, int) {
	rule, least := picture.SizeQwen, min(v.enc.MinTokens, budget)
	switch {
	case v.like == picture.LlamaCpp:
		rule = picture.SizeLlamaCpp
	case v.gemma():
		rule = picture.SizeGemma
	}
	return picture.Size(w, h, v.enc.Factor(), least, budget, rule)
}

// decode reads the file of an image and resizes it.
func (v *Vision) decode(p *Image) (*picture.Image, error) {
	m, err := v.like.Decode(p.data, picture.Limits{})
	if err != nil {
		return nil, err
	}
	w, h := v.resized(m.Width, m.Height, p.budget)
	return picture.Resize(m, w, h, v.like.Fit()), nil
}

// encode returns the rows of an image.
func (v *Vision) encode(ctx context.Context, p *Image, progress func(done, total int)) (rows []float32, err error) {
	if v.began != nil {
		v.began()
	}
	m := p.pixels
	if m == nil {
		if m, err = v.decode(p); err != nil {
			return nil, err
		}
	}
	rows, w, h, err := v.enc.Encode(ctx, vision.Pixels{Width: m.Width, Height: m.Height, Pix: m.Pix}, progress)
	if err == nil && (w != p.W || h != p.H) {
		err = fmt.Errorf("image: %dx%d rows; want %dx%d", w, h, p.W, p.H)
	}
	return rows, err
}

// Encode is encode for programs that run no Engine; the caller drives the device. It also returns the resized image.
func (v *Vision) Encode(ctx context.Context, p *Image) (rows []float32, resized *picture.Image, err error) {
	if p.pixels == nil {
		if p.pixels, err = v.decode(p); err != nil {
			return nil, nil, err
		}
	}
	rows, err = v.encode(ctx, p, nil)
	return rows, p.pixels, err
}

// SourceSize is the width and height of an image before it is resized.
func (v *Vision) SourceSize(p *Image) (w, h int) {
	w, h, _ = v.like.Config(p.data, picture.Limits{})
	return w, h
}

// lookup returns rows that were encoded before, nil for none.
func (v *Vision) lookup(key [32]byte) []float32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	rows, _ := v.rows.get(key)
	return rows
}

func (v *Vision) remember(key [32]byte, rows []float32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rows.put(key, rows, 4*len(rows), v.limit)
}

// Bytes is the size of the encoder's weights.
func (v *Vision) Bytes() int { return v.enc.Bytes }

// lru remembers values by hashes. The zero value is empty.
type lru[T any] struct {
	byKey map[[32]byte]*list.Element
	order list.List // of lruEntry, newest first
	size  int
}

type lruEntry[T any] struct {
	key   [32]byte
	value T
	size  int
}

func (l *lru[T]) get(key [32]byte) (value T, ok bool) {
	e := l.byKey[key]
	if e == nil {
		return value, false
	}
	l.order.MoveToFront(e)
	return e.Value.(lruEntry[T]).value, true
}

// put remembers a value and forgets the oldest ones while all together are larger than limit.
func (l *lru[T]) put(key [32]byte, value T, size, limit int) {
	if e := l.byKey[key]; e != nil {
		l.remove(e)
	}
	if l.byKey == nil {
		l.byKey = map[[32]byte]*list.Element{}
	}
	l.byKey[key] = l.order.PushFront(lruEntry[T]{key, value, size})
	for l.size += size; l.size > limit; {
		l.remove(l.order.Back())
	}
}

func (l *lru[T]) remove(e *list.Element) {
	x := l.order.Remove(e).(lruEntry[T])
	delete(l.byKey, x.key)
	l.size -= x.size
}

// loadVision opens the image encoder: the file that Options name, or the one beside the model.
func (m *Model) loadVision(opt Options) error {
	path := opt.Vision
	if path == "" {
		path = FindVision(m.Path, m.Target.File())
	}
	if path == "" || path == "none" {
		return nil
	}
	err := m.openVision(path, opt)
	if err != nil && opt.Vision == "" && !errors.Is(err, ErrNoMemory) { // it only happened to lie there
		if opt.Say != nil {
			opt.Say(fmt.Sprintf("warning: images cannot be read: %v", err))
		}
		return nil
	}
	return err
}

// cpuRows is how many rows images get on a processor unless a request asks for more: a tower takes it seconds.
const cpuRows = 512

// gemmaRows is the budget that Gemma's reference takes.
const gemmaRows = 280

func (m *Model) openVision(path string, opt Options) (err error) {
	v := &Vision{Path: path, like: opt.ImageLike, Pad: -1, Begin: -1, End: -1, limit: rowsBytes}
	if v.file, err = gguf.Open(path); err != nil {
		return err
	}
	opened := false
	defer func() {
		if !opened {
			v.file.Close()
		}
	}()
	v.b = m.Target.Backend()
	if names := device.Names(opt.VisionDevice); names != nil {
		if v.b, err = m.device(names[0], opt); err != nil {
			return err
		}
	}
	v.own = !slices.Contains(m.Target.Devices(), v.b)
	for _, d := range m.Drafters() {
		if own, ok := d.(interface{ Devices() []backend.Backend }); ok && slices.Contains(own.Devices(), v.b) {
			v.own = false
		}
	}
	like := vision.Reference
	if opt.ImageLike == picture.LlamaCpp {
		like = vision.LlamaCpp
	}
	if v.enc, err = vision.Open(v.file, v.b, like); err != nil {
		return err
	}
	if n := v.enc.OutWidth(); n != m.Target.Hidden {
		return fmt.Errorf("%s: its rows are %d wide, those of the model %d: the encoder was made for another model", path,
			n, m.Target.Hidden)
	}
	if err := v.tokens(m); err != nil {
		return err
	}
	v.Default = v.Trained()
	if _, onGPU := v.b.(gpu); !onGPU && opt.ImageLike == picture.Reference {
		v.Default = min(v.Default, cpuRows)
	}
	if opt.ImageRows > 0 {
		v.Default = min(opt.ImageRows, v.enc.MaxTokens)
	}
	h := sha256.New()
	fmt.Fprintln(h, "strobe image", opt.ImageLike)
	hashFile(h, v.file)
	h.Sum(v.print[:0])
	m.Vision, m.files = v, append(m.files, v.file)
	opened = true
	if opt.Say != nil {
		opt.Say(fmt.Sprintf("images: %s, %s on %s, up to %d tokens an image", filepath.Base(path), Bytes(v.enc.Bytes),
			v.b.Name(), v.Default))
	}
	return nil
}

// tokens finds those that stand for images in the vocabulary.
func (v *Vision) tokens(m *Model) error {
	find := func(text string, to *int32) error {
		id, ok := m.Tokenizer.Lookup(text)
		if !ok {
			return fmt.Errorf("%s: the vocabulary of %s has no token %s: the model was not made for images", v.Path,
				filepath.Base(m.Path), text)
		}
		*to = id
		return nil
	}
	if v.enc.Projector == "qwen3vl_merger" {
		return find("<|image_pad|>", &v.Pad)
	}
	return errors.Join(find("<|image|>", &v.Pad), find("<|image>", &v.Begin), find("<image|>", &v.End))
}

// FindVision looks beside a model for an image encoder that fits it: the file whose name has mmproj in it and shares
// the longest beginning with the model's. It returns "" when there is none.
func FindVision(path string, target *gguf.File) string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	hidden, _, _ := target.Uint(target.Arch() + ".embedding_length")
	stem := strings.ToLower(filepath.Base(path))
	best, shared := "", -1
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if e.IsDir() || !strings.HasSuffix(name, ".gguf") || !strings.Contains(name, "mmproj") {
			continue
		}
		file := filepath.Join(filepath.Dir(path), e.Name())
		f, err := gguf.Open(file)
		if err != nil {
			continue
		}
		width, ok, err := f.Uint("clip.vision.projection_dim")
		fits := f.Arch() == "clip" && err == nil && (!ok || width == hidden)
		f.Close()
		if !fits {
			continue
		}
		name = strings.TrimLeft(strings.TrimPrefix(name, "mmproj"), "-_.")
		n := 0
		for n < len(stem) && n < len(name) && stem[n] == name[n] {
			n++
		}
		if n > shared {
			best, shared = file, n
		}
	}
	return best
}

// forTarget is the images of a request as the target takes them, those in the first n tokens without rows.
func (j *job) forTarget(v *Vision, n int) (images []model.Image, missing *Image) {
	for i := range j.g.req.Images {
		p := &j.g.req.Images[i]
		x := model.Image{At: p.At, W: p.W, H: p.H}
		if p.At+p.Len() > n {
			if x.Rows = j.rows[p.key]; x.Rows == nil {
				x.Rows = v.lookup(p.key)
			}
			if x.Rows == nil && missing == nil {
				missing = p
			}
		}
		images = append(images, x)
	}
	return images, missing
}
