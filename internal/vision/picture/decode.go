package picture

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"sync"

	"golang.org/x/image/bmp"
	"golang.org/x/image/webp"
)

// Limits are what an image file may claim. A field that is zero has the value of Defaults.
type Limits struct {
	Bytes  int // length of the file
	Pixels int // width times height
	Side   int // pixels of the longer side
	Aspect int // longer side over shorter side
}

// Defaults allow the photographs of today's telephones. Decoding needs at most about 16 bytes for a pixel (a
// progressive JPEG, whose coefficients wait for the last scan), so about 1 GB here. Qwen's reference refuses the same
// aspect ratio.
var Defaults = Limits{Bytes: 32 << 20, Pixels: 64 << 20, Side: 65536, Aspect: 200}

// Images of more pixels than this are decoded one at a time, so that many of them in flight need the memory of one.
const largePixels = 16 << 20

var large sync.Mutex

// A progressive JPEG visits every pixel once for each scan, and a scan of a few bytes is valid. Cameras and encoders
// write about ten.
const maxScans = 100

// format is a kind of image file.
type format struct {
	name   string
	magic  string // a question mark stands for any byte
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}

var formats = []format{
	{"PNG", "\x89PNG\r\n\x1a\n", png.DecodeConfig, png.Decode},
	{"JPEG", "\xff\xd8", jpeg.DecodeConfig, jpeg.Decode},
	{"GIF", "GIF8?a", gif.DecodeConfig, gif.Decode},
	{"WebP", "RIFF????WEBP", webp.DecodeConfig, webp.Decode},
	{"BMP", "BM", bmp.DecodeConfig, bmp.Decode},
}

// Decode reads an image file as the reference does: PNG, JPEG, GIF (its first frame), WebP or BMP, turned upright as
// its EXIF orientation says. Transparency is dropped: a pixel has its colour whatever its alpha is. 16 bits become 8.
func Decode(data []byte, lim Limits) (*Image, error) { return Reference.Decode(data, lim) }

// Decode reads an image file; like LlamaCpp it leaves the image as it is stored, whatever its EXIF orientation says.
func (l Like) Decode(data []byte, lim Limits) (*Image, error) {
	f, c, err := check(data, lim)
	if err != nil {
		return nil, err
	}
	if c.Width*c.Height > largePixels {
		large.Lock()
		defer large.Unlock()
	}
	decoded, err := f.decode(bytes.NewReader(data))
	if err != nil {
		return nil, refused(f, err)
	}
	if b := decoded.Bounds(); b.Dx() > c.Width || b.Dy() > c.Height {
		return nil, fmt.Errorf("image: %s of %dx%d has %dx%d pixels", f.name, c.Width, c.Height, b.Dx(), b.Dy())
	}
	m, err := toRGB(decoded, f, c.Width, c.Height)
	if err != nil {
		return nil, err
	}
	if l == Reference {
		m = upright(m, orientation(f, data))
	}
	return m, nil
}

// Config returns the width and height of an image file as it is stored, without decoding it, or says why Decode would
// refuse it.
func Config(data []byte, lim Limits) (width, height int, err error) {
	_, c, err := check(data, lim)
	return c.Width, c.Height, err
}

// check finds the format and the size of a file and holds them against the limits.
func check(data []byte, lim Limits) (format, image.Config, error) {
	lim = lim.withDefaults()
	var none image.Config
	if len(data) > lim.Bytes {
		return format{}, none, fmt.Errorf("image: %d bytes are more than the limit of %d", len(data), lim.Bytes)
	}
	f, ok := sniff(data)
	if !ok {
		return format{}, none, errors.New("image: neither PNG, JPEG, GIF, WebP nor BMP" + looksLike(data))
	}
	if f.name == "WebP" && animatedWebP(data) {
		return f, none, errors.New("image: animated WebP is not supported; send one frame, or a GIF")
	}
	c, err := f.config(bytes.NewReader(data))
	if err != nil {
		return f, none, refused(f, err)
	}
	w, h := c.Width, c.Height
	long, short := max(w, h), min(w, h)
	switch {
	case short <= 0:
		return f, none, fmt.Errorf("image: %s of %dx%d has no pixels", f.name, w, h)
	case long > lim.Side:
		return f, none, fmt.Errorf("image: %s of %dx%d: a side is longer than the limit of %d pixels", f.name, w, h, lim.Side)
	case long > lim.Pixels/short: // a product could overflow
		return f, none, fmt.Errorf("image: %s of %dx%d has more than the limit of %d pixels", f.name, w, h, lim.Pixels)
	case long > lim.Aspect*short:
		return f, none, fmt.Errorf("image: %s of %dx%d: a side is more than %d times the other", f.name, w, h, lim.Aspect)
	}
	if f.name == "JPEG" {
		if scans := jpegScans(data); scans > maxScans {
			return f, none, fmt.Errorf("image: JPEG of %d scans; at most %d are read", scans, maxScans)
		}
	}
	return f, c, nil
}

func (lim Limits) withDefaults() Limits {
	for _, x := range []struct {
		field *int
		value int
	}{
		{&lim.Bytes, Defaults.Bytes}, {&lim.Pixels, Defaults.Pixels},
		{&lim.Side, Defaults.Side}, {&lim.Aspect, Defaults.Aspect},
	} {
		if *x.field <= 0 {
			*x.field = x.value
		}
	}
	return lim
}

func sniff(data []byte) (format, bool) {
	for _, f := range formats {
		if matches(data, f.magic) {
			return f, true
		}
	}
	return format{}, false
}

func matches(data []byte, magic string) bool {
	if len(data) < len(magic) {
		return false
	}
	for i := range magic {
		if magic[i] != '?' && magic[i] != data[i] {
			return false
		}
	}
	return true
}

// looksLike names what people send instead of an image file.
func looksLike(data []byte) string {
	for _, x := range []struct{ magic, text string }{
		{"", " (it is empty)"}, // only if there is nothing else, see below
		{"<svg", " (it looks like SVG; render it first)"},
		{"<?xml", " (it looks like SVG; render it first)"},
		{"%PDF", " (it looks like PDF; send its pages as images)"},
		{"II*\x00", " (it looks like TIFF)"},
		{"MM\x00*", " (it looks like TIFF)"},
		{"????ftypavif", " (it looks like AVIF)"},
		{"????ftyphei", " (it looks like HEIC)"},
		{"????ftypmif1", " (it looks like HEIC)"},
	} {
		if x.magic == "" && len(data) == 0 || x.magic != "" && matches(data, x.magic) {
			return x.text
		}
	}
	return ""
}

func refused(f format, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("image: %s is cut off", f.name)
	}
	return fmt.Errorf("image: %s cannot be decoded: %w", f.name, err)
}

// toRGB converts what the decoders return. The image has the size of the file; a GIF's first frame may cover less, and
// what it leaves out is black.
func toRGB(decoded image.Image, f format, width, height int) (*Image, error) {
	m := New(width, height)
	b := decoded.Bounds()
	switch d := decoded.(type) {
	case *image.Gray:
		pick(m, d.Pix, d.Stride, 1, 0, 0, 0)
	case *image.Gray16:
		pick(m, d.Pix, d.Stride, 2, 0, 0, 0)
	case *image.RGBA: // what the decoders return as this type has no transparency
		pick(m, d.Pix, d.Stride, 4, 0, 1, 2)
	case *image.NRGBA:
		pick(m, d.Pix, d.Stride, 4, 0, 1, 2)
	case *image.RGBA64:
		pick(m, d.Pix, d.Stride, 8, 0, 2, 4)
	case *image.NRGBA64:
		pick(m, d.Pix, d.Stride, 8, 0, 2, 4)
	case *image.CMYK:
		fromCMYK(m, d)
	case *image.YCbCr:
		if f.name == "WebP" {
			fromVP8(m, d)
		} else {
			fromJPEG(m, d)
		}
	case *image.NYCbCrA:
		fromVP8(m, &d.YCbCr)
	case *image.Paletted:
		fromPalette(m, d, b)
	default:
		return nil, fmt.Errorf("image: %s of colours %T is not supported", f.name, decoded)
	}
	return m, nil
}

// pick copies three of every step bytes. 16-bit samples have their upper byte first, so that is their 8 bits.
func pick(m *Image, pix []byte, stride, step, red, green, blue int) {
	for y := range m.Height {
		in, out := pix[y*stride:], m.row(y)
		for x := 0; x < len(out); x += 3 {
			out[x], out[x+1], out[x+2] = in[red], in[green], in[blue]
			in = in[min(step, len(in)):]
		}
	}
}

func fromPalette(m *Image, d *image.Paletted, b image.Rectangle) {
	var table [256][3]byte // an index beyond the palette is black
	for i, c := range d.Palette[:min(len(d.Palette), len(table))] {
		// The colour models would multiply by alpha, and black has no way back.
		if n, ok := c.(color.NRGBA); ok {
			table[i] = [3]byte{n.R, n.G, n.B}
		} else {
			r, g, b, _ := c.RGBA()
			table[i] = [3]byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)}
		}
	}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		out := m.row(y)[3*b.Min.X:]
		for x, index := range d.Pix[(y-b.Min.Y)*d.Stride:][:b.Dx()] {
			copy(out[3*x:], table[index][:])
		}
	}
}

func fromCMYK(m *Image, d *image.CMYK) {
	for y := range m.Height {
		in, out := d.Pix[y*d.Stride:], m.row(y)
		for x := range m.Width {
			white := 255 - int(in[4*x+3])
			for i := range 3 {
				out[3*x+i] = byte(((255-int(in[4*x+i]))*white + 127) / 255)
			}
		}
	}
}
