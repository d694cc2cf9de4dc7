package picture

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"math/rand/v2"
	"strings"
	"testing"
)

// draw fills an image with Set.
func draw[M interface {
	image.Image
	Set(x, y int, c color.Color)
}](m M, at func(x, y int) color.Color) M {
	for y := m.Bounds().Min.Y; y < m.Bounds().Max.Y; y++ {
		for x := m.Bounds().Min.X; x < m.Bounds().Max.X; x++ {
			m.Set(x, y, at(x, y))
		}
	}
	return m
}

// TestColours: every kind of file becomes the expected bytes; (2, 1) is looked at, of images 5 wide and 3 high.
func TestColours(t *testing.T) {
	size := image.Rect(0, 0, 5, 3)
	shade := func(x, y int) byte { return byte(40*x + 7*y + 3) } // 90 at (2, 1)
	clear := color.Palette{color.NRGBA{9, 8, 7, 0}, color.NRGBA{200, 100, 50, 0}, color.NRGBA{1, 2, 3, 128}}
	palette := image.NewPaletted(size, clear)
	palette.SetColorIndex(2, 1, 1)
	for _, x := range []struct {
		name string
		data []byte
		want [3]byte
	}{
		{"grey", encodePNG(t, draw(image.NewGray(size), func(x, y int) color.Color {
			return color.Gray{shade(x, y)}
		})), [3]byte{90, 90, 90}},
		{"grey, 16 bits", encodePNG(t, draw(image.NewGray16(size), func(x, y int) color.Color {
			return color.Gray16{uint16(shade(x, y))<<8 | 0xff}
		})), [3]byte{90, 90, 90}},
		{"colours, 16 bits", encodePNG(t, draw(image.NewRGBA64(size), func(x, y int) color.Color {
			return color.RGBA64{uint16(shade(x, y))<<8 | 0xfe, 0x1280, 0xffff, 0xffff}
		})), [3]byte{90, 0x12, 255}},
		{"alpha, 16 bits", encodePNG(t, draw(image.NewNRGBA64(size), func(x, y int) color.Color {
			return color.NRGBA64{uint16(shade(x, y))<<8 | 0xfe, 0x1280, 0xffff, 0x0100}
		})), [3]byte{90, 0x12, 255}},
		{"alpha 0", encodePNG(t, draw(image.NewNRGBA(size), func(x, y int) color.Color {
			return color.NRGBA{shade(x, y), 1, 2, 0}
		})), [3]byte{90, 1, 2}},
		{"palette with alpha 0", encodePNG(t, palette), [3]byte{200, 100, 50}},
		{"BMP", encodeBMP(t, draw(image.NewRGBA(size), func(x, y int) color.Color {
			return color.RGBA{shade(x, y), 4, 5, 255}
		})), [3]byte{90, 4, 5}},
		{"BMP with alpha", encodeBMP(t, draw(image.NewNRGBA(size), func(x, y int) color.Color {
			return color.NRGBA{shade(x, y), 4, 5, 3}
		})), [3]byte{90, 4, 5}},
		{"WebP without loss", riff("VP8L", solidVP8L(5, 3, 12, 34, 56, 0)), [3]byte{12, 34, 56}},
		{"JPEG, grey", solidJPEG(-1, 77), [3]byte{77, 77, 77}},
		{"JPEG, YCbCr", solidJPEG(-1, 100, 128, 178), [3]byte{170, 64, 100}}, // 100 + 1.402*50, 100 - 0.71414*50
		{"JPEG, RGB", solidJPEG(0, 10, 20, 30), [3]byte{10, 20, 30}},
		{"JPEG, CMYK", solidJPEG(0, 255, 55, 105, 155), [3]byte{155, 33, 64}}, // Adobe stores 255 - ink
		{"JPEG, YCCK", solidJPEG(2, 100, 128, 128, 205), [3]byte{125, 125, 125}},
	} {
		m, err := Decode(x.data, Limits{})
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if got := [3]byte(m.row(1)[3*2:]); got != x.want {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
}

// TestAnimation: of a GIF, the first frame counts, at its place on the canvas.
func TestAnimation(t *testing.T) {
	m, err := Decode(animation(t), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Width != 6 || m.Height != 5 {
		t.Fatalf("%dx%d, want 6x5", m.Width, m.Height)
	}
	for y := range 5 {
		for x := range 6 {
			want := [3]byte{}
			if x >= 2 && x < 5 && y >= 1 && y < 3 {
				want = [3]byte{200, 10, 20}
			}
			if got := [3]byte(m.row(y)[3*x:]); got != want {
				t.Errorf("(%d, %d) is %v, want %v", x, y, got, want)
			}
		}
	}
}

// TestLossy compares with the pixels of libwebp and libjpeg-turbo (as a browser shows them). WebP has one right answer.
// JPEG allows inverse cosine transforms to round; repeated chroma would differ by more than 60 here.
func TestLossy(t *testing.T) {
	for name, allowed := range map[string]int{
		"blocks37x29.webp": 0, "blocks37x29_q50.jpg": 2, "blocks37x29_q95.jpg": 2,
	} {
		got, want := decodeFile(t, name, Reference), decodeFile(t, name+".png", Reference)
		if got.Width != want.Width || got.Height != want.Height {
			t.Errorf("%s: %dx%d, want %dx%d", name, got.Width, got.Height, want.Width, want.Height)
		} else if worst, mean := difference(got, want); worst > allowed || mean > 0.05 {
			t.Errorf("%s: differs by up to %d, %.3f on average", name, worst, mean)
		}
	}
}

// TestChroma compares every ratio and odd size with the weights written down once more: 3/4 of the nearer sample and
// 1/4 of the next one, across and down.
func TestChroma(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for ratio, steps := range map[image.YCbCrSubsampleRatio][2]int{
		image.YCbCrSubsampleRatio444: {1, 1}, image.YCbCrSubsampleRatio422: {2, 1}, image.YCbCrSubsampleRatio420: {2, 2},
		image.YCbCrSubsampleRatio440: {1, 2}, image.YCbCrSubsampleRatio411: {4, 1}, image.YCbCrSubsampleRatio410: {4, 2},
	} {
		for range 20 {
			d := image.NewYCbCr(image.Rect(0, 0, 1+random.IntN(19), 1+random.IntN(9)), ratio)
			for i := range d.Cb {
				d.Cb[i] = byte(random.Uint32())
			}
			m := New(d.Rect.Dx(), d.Rect.Dy())
			columns, rows := (m.Width+steps[0]-1)/steps[0], (m.Height+steps[1]-1)/steps[1]
			sample := func(x, y int) float64 {
				return float64(d.Cb[min(max(y, 0), rows-1)*d.CStride+min(max(x, 0), columns-1)])
			}
			smooth := steps[0] < 4 && (steps[0] < 2 || columns > 2)
			out, sums := make([]byte, m.Width+8), make([]int32, m.Width+8)
			for y := range m.Height {
				jpegChroma(out, sums, d.Cb, d, m, y)
				for x := range m.Width {
					cx, cy := x/steps[0], y/steps[1]
					want := sample(cx, cy)
					if smooth {
						nx, ny := cx, cy
						if steps[0] == 2 {
							nx += 2*(x%2) - 1
						}
						if steps[1] == 2 {
							ny += 2*(y%2) - 1
						}
						want = (9*want + 3*sample(nx, cy) + 3*sample(cx, ny) + sample(nx, ny)) / 16
					}
					if d := float64(out[x]) - want; d > 0.76 || d < -0.76 || (d != 0 && !smooth) {
						t.Fatalf("%v, %dx%d: (%d, %d) is %d, want %.2f", ratio, m.Width, m.Height, x, y, out[x], want)
					}
				}
			}
		}
	}
}

// TestOrientation: all eight of them, in every kind of file that has them, in both byte orders.
func TestOrientation(t *testing.T) {
	// The image is "1 2 3 / 4 5 6" in shades of red.
	stored := draw(image.NewRGBA(image.Rect(0, 0, 3, 2)), func(x, y int) color.Color {
		return color.RGBA{byte(1 + x + 3*y), 0, 0, 255}
	})
	shown := map[uint16]string{
		0: "123/456", 1: "123/456", 2: "321/654", 3: "654/321", 4: "456/123",
		5: "14/25/36", 6: "41/52/63", 7: "63/52/41", 8: "36/25/14", 9: "123/456",
	}
	plain := encodePNG(t, stored)
	const header = 8 + 25 // signature and IHDR
	for orientation, want := range shown {
		for _, exif := range [][]byte{
			exifOf(binary.LittleEndian, "II*\x00", orientation), exifOf(binary.BigEndian, "MM\x00*", orientation),
		} {
			data := append(bytes.Clone(plain[:header]), chunk("eXIf", exif)...)
			data = append(data, plain[header:]...)
			for like, want := range map[Like]string{Reference: want, LlamaCpp: shown[1]} {
				m, err := like.Decode(data, Limits{})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for y := range m.Height {
					var row []byte
					for x := range m.Width {
						row = append(row, '0'+m.row(y)[3*x])
					}
					got = append(got, string(row))
				}
				if s := strings.Join(got, "/"); s != want {
					t.Errorf("orientation %d, like %d: %s, want %s", orientation, like, s, want)
				}
			}
			if orientation < 5 || orientation > 8 {
				continue
			}
			turned := map[string][]byte{
				"WebP": riff("VP8X", "\x08\x00\x00\x00\x04\x00\x00\x02\x00\x00", "VP8L", solidVP8L(5, 3, 1, 2, 3, 4),
					"EXIF", string(exif)),
				"WebP with JPEG's prefix": riff("VP8L", solidVP8L(5, 3, 1, 2, 3, 4), "EXIF", "Exif\x00\x00"+string(exif)),
			}
			for name, data := range turned {
				if m, err := Decode(data, Limits{}); err != nil || m.Width != 3 || m.Height != 5 {
					t.Errorf("%s, orientation %d: %v, %v, want 3x5", name, orientation, m, err)
				}
			}
		}
	}
}

// TestBrokenEXIF: an orientation that cannot be read is none.
func TestBrokenEXIF(t *testing.T) {
	good := exifOf(binary.LittleEndian, "II*\x00", 6)
	if tiffOrientation(good) != 6 {
		t.Fatal("the good one is not read")
	}
	for n := range good[:8+2+24] { // what follows is not needed
		if o := tiffOrientation(good[:n]); o != 1 && n < 8+2+24 {
			t.Errorf("cut to %d bytes: orientation %d", n, o)
		}
	}
	far := bytes.Clone(good)
	binary.LittleEndian.PutUint32(far[4:], 0xffffffff)
	long := bytes.Clone(good)
	binary.LittleEndian.PutUint16(long[8+2+12+2:], 4) // the type of the orientation
	for _, b := range [][]byte{far, long} {
		if o := tiffOrientation(b); o != 1 {
			t.Errorf("% x: orientation %d", b, o)
		}
	}
}

// TestRefused: hostile files give one line, before anything large is decoded.
func TestRefused(t *testing.T) {
	photo, small := file(t, "exif6_64x40.jpg"), file(t, "rgba90x70.png")
	webp := file(t, "blocks37x29.webp")
	const canvas = "\x00\x00\x00\x04\x00\x00\x02\x00\x00" // of 5x3 pixels
	scans := solidJPEG(-1, 77)
	at := bytes.Index(scans, []byte{0xff, 0xda})
	many := append(bytes.Clone(scans[:at]), bytes.Repeat(scans[at:len(scans)-2], maxScans+1)...)
	twoBytes := func(data []byte, after string, at int, value uint16) []byte {
		data = bytes.Clone(data)
		binary.BigEndian.PutUint16(data[bytes.Index(data, []byte(after))+at:], value)
		return data
	}
	for _, x := range []struct {
		name string
		data []byte
		lim  Limits
		want string
	}{
		{"empty", nil, Limits{}, "image: neither PNG, JPEG, GIF, WebP nor BMP (it is empty)"},
		{"text", []byte("hello"), Limits{}, "image: neither PNG, JPEG, GIF, WebP nor BMP"},
		{"SVG", []byte("<svg xmlns='http://www.w3.org/2000/svg'/>"), Limits{}, "render it first"},
		{"HEIC", []byte("\x00\x00\x00\x18ftypheic\x00\x00\x00\x00"), Limits{}, "HEIC"},
		{"PDF", []byte("%PDF-1.7"), Limits{}, "send its pages as images"},
		{"many bytes", small, Limits{Bytes: len(small) - 1}, "image: 964 bytes are more than the limit of 963"},
		{"many pixels", small, Limits{Pixels: 90*70 - 1}, "has more than the limit of 6299 pixels"},
		{"long side", small, Limits{Side: 89}, "a side is longer than the limit of 89 pixels"},
		{"thin", file(t, "wide1000x37.png"), Limits{Aspect: 27}, "PNG of 1000x37: a side is more than 27 times the other"},
		{"1x65535", pngHeader(1, 65535), Limits{}, "a side is more than 200 times the other"},
		{"bomb", pngHeader(65535, 65535), Limits{}, "has more than the limit of 67108864 pixels"},
		{"bomb whose size overflows", pngHeader(1<<31-1, 1<<31-1), Limits{}, "image: PNG"},
		{"JPEG bomb", twoBytes(twoBytes(photo, "\xff\xc0", 5, 65535), "\xff\xc0", 7, 65535), Limits{}, "limit of 67108864"},
		{"GIF bomb", append([]byte("GIF89a"), 0xff, 0xff, 0xff, 0xff, 0, 0, 0), Limits{}, "limit of 67108864"},
		{"no width", twoBytes(photo, "\xff\xc0", 7, 0), Limits{}, "image: JPEG of 0x40 has no pixels"},
		{"cut PNG", small[:len(small)/2], Limits{}, "image: PNG cannot be decoded: png: invalid format: not enough"},
		{"cut JPEG", photo[:len(photo)-200], Limits{}, "image: JPEG cannot be decoded"},
		{"cut header", photo[:20], Limits{}, "image: JPEG is cut off"},
		{"cut GIF", animation(t)[:30], Limits{}, "image: GIF"},
		{"cut BMP", encodeBMP(t, image.NewRGBA(image.Rect(0, 0, 9, 9)))[:80], Limits{}, "image: BMP is cut off"},
		{"cut WebP", webp[:len(webp)-300], Limits{}, "image: WebP"},
		{"CMYK without Adobe's mark", solidJPEG(-1, 1, 2, 3, 4), Limits{}, "image: JPEG cannot be decoded"},
		{"animated WebP", riff("VP8X", "\x02"+canvas, "ANIM", "\x00\x00\x00\x00\x00\x00"), Limits{},
			"image: animated WebP is not supported"},
		{"small canvas, large frame", riff("VP8X", "\x00"+canvas, "VP8L", solidVP8L(9999, 9999, 1, 2, 3, 4)), Limits{},
			"image: WebP cannot be decoded"},
		{"many scans", append(many, 0xff, 0xd9), Limits{}, "image: JPEG of 101 scans; at most 100 are read"},
	} {
		m, err := Decode(x.data, x.lim)
		if err == nil {
			t.Errorf("%s: decoded to %dx%d", x.name, m.Width, m.Height)
		} else if !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q, want %q", x.name, err, x.want)
		}
	}
}

// TestLimits: what reaches a limit is inside.
func TestLimits(t *testing.T) {
	data := file(t, "wide1000x37.png")
	if w, h, err := Config(data, Limits{len(data), 37000, 1000, 28}); err != nil || w != 1000 || h != 37 {
		t.Errorf("%dx%d, %v", w, h, err)
	}
	square := solidJPEG(-1, 77)
	if _, err := Decode(square, Limits{Aspect: 1, Pixels: 64, Side: 8}); err != nil {
		t.Error(err)
	}
	// Telephones put more after the end of the image.
	scan := bytes.Clone(square[bytes.Index(square, []byte{0xff, 0xda}) : len(square)-2])
	if _, err := Decode(append(append(square, 0, 2), bytes.Repeat(scan, maxScans+1)...), Limits{}); err != nil {
		t.Error(err)
	}
}

// FuzzDecode: whatever a file says, it is decoded within its limits or refused in one line.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{
		"exif6_64x40.jpg", "noise17x31.png", "px1x1.png", "blocks37x29.webp", "blocks37x29_q50.jpg", "gray123x77.jpg",
	} {
		f.Add(file(f, name))
	}
	f.Add(animation(f))
	f.Add(encodeBMP(f, image.NewRGBA(image.Rect(0, 0, 9, 9))))
	f.Add(encodeBMP(f, image.NewPaletted(image.Rect(0, 0, 9, 9), color.Palette{color.Black, color.White})))
	f.Add(riff("VP8L", solidVP8L(5, 3, 1, 2, 3, 4), "EXIF", string(exifOf(binary.BigEndian, "MM\x00*", 6))))
	f.Add(solidJPEG(0, 1, 2, 3, 4))
	f.Add(solidJPEG(-1, 77))
	lim := Limits{Bytes: 1 << 16, Pixels: 1 << 16, Side: 1000, Aspect: 100} // a megabyte or two at a time
	f.Fuzz(func(t *testing.T, data []byte) {
		stored, err := LlamaCpp.Decode(data, lim)
		w, h, configErr := Config(data, lim)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "image: ") {
				t.Fatalf("%q", err)
			}
			return
		}
		if configErr != nil || stored.Width != w || stored.Height != h || w*h > lim.Pixels || len(stored.Pix) != 3*w*h {
			t.Fatalf("decoded to %dx%d, %d bytes; Config says %dx%d, %v",
				stored.Width, stored.Height, len(stored.Pix), w, h, configErr)
		}
		turned, err := Decode(data, lim)
		if err != nil || turned.Width*turned.Height != w*h {
			t.Fatalf("%v, %v", turned, err)
		}
	})
}
