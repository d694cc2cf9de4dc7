package picture

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"testing"

	"golang.org/x/image/bmp"
)

// Files that no encoder at hand writes, built byte by byte.

func encodePNG(t testing.TB, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func encodeBMP(t testing.TB, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := bmp.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// animation is a GIF of 6x5 pixels: its first frame is red and covers 3x2 pixels at (2, 1), its second is blue.
func animation(t testing.TB) []byte {
	t.Helper()
	red, blue := color.RGBA{200, 10, 20, 255}, color.RGBA{0, 0, 255, 255}
	first := image.NewPaletted(image.Rect(2, 1, 5, 3), color.Palette{red, blue})
	second := image.NewPaletted(image.Rect(0, 0, 6, 5), color.Palette{red, blue})
	for i := range second.Pix {
		second.Pix[i] = 1
	}
	var b bytes.Buffer
	err := gif.EncodeAll(&b, &gif.GIF{
		Image: []*image.Paletted{first, second}, Delay: []int{1, 1},
		Config: image.Config{Width: 6, Height: 5, ColorModel: first.Palette},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// chunk is a chunk of a PNG.
func chunk(name string, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	b = append(append(b, name...), body...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
}

// pngHeader is a PNG that ends after its header.
func pngHeader(width, height uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, width)
	b = binary.BigEndian.AppendUint32(b, height)
	return append([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", append(b, 8, 2, 0, 0, 0))...)
}

// segment is a segment of a JPEG.
func segment(marker byte, body ...byte) []byte {
	return append([]byte{0xff, marker, byte((len(body) + 2) >> 8), byte(len(body) + 2)}, body...)
}

// bits collects bits, the highest of each value first.
type bits struct {
	bytes []byte
	n     int
}

func (b *bits) put(value, count int) {
	for i := count - 1; i >= 0; i-- {
		if b.n%8 == 0 {
			b.bytes = append(b.bytes, 0)
		}
		b.bytes[b.n/8] |= byte(value>>i&1) << (7 - b.n%8)
		b.n++
	}
}

// solidJPEG is a baseline JPEG of 8x8 pixels, whose components have one value each. adobe is its colour transform; a
// file with -1 says none.
func solidJPEG(adobe int, values ...int) []byte {
	out := []byte{0xff, 0xd8}
	if adobe >= 0 {
		out = append(out, segment(0xee, append([]byte("Adobe\x00\x64\x00\x00\x00\x00"), byte(adobe))...)...)
	}
	quantisers := make([]byte, 65)
	for i := range quantisers[1:] {
		quantisers[1+i] = 8 // a block of one value v has the coefficient 8*(v-128)
	}
	out = append(out, segment(0xdb, quantisers...)...)
	frame, scan := []byte{8, 0, 8, 0, 8, byte(len(values))}, []byte{byte(len(values))}
	var data bits
	for i, v := range values {
		frame = append(frame, byte(i+1), 0x11, 0)
		scan = append(scan, byte(i+1), 0)
		v -= 128
		size := 0
		for x := max(v, -v); x > 0; x >>= 1 {
			size++
		}
		data.put(size, 4) // the codes below: size in 4 bits
		if v < 0 {
			v += 1<<size - 1
		}
		data.put(v, size)
		data.put(0, 1) // end of block
	}
	for data.n%8 != 0 {
		data.put(1, 1)
	}
	out = append(out, segment(0xc0, frame...)...)
	sizes := append([]byte{0x00, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	out = append(out, segment(0xc4, sizes...)...)
	out = append(out, segment(0xc4, append([]byte{0x10, 1}, make([]byte, 16)...)...)...)
	out = append(out, segment(0xda, append(scan, 0, 63, 0)...)...)
	out = append(out, bytes.ReplaceAll(data.bytes, []byte{0xff}, []byte{0xff, 0})...)
	return append(out, 0xff, 0xd9)
}

// riff is a WebP file of chunks: names and contents in turn.
func riff(chunks ...string) []byte {
	var body []byte
	for i := 0; i < len(chunks); i += 2 {
		body = append(body, chunks[i]...)
		body = binary.LittleEndian.AppendUint32(body, uint32(len(chunks[i+1])))
		body = append(body, chunks[i+1]...)
		if len(chunks[i+1])%2 == 1 {
			body = append(body, 0)
		}
	}
	out := binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(4+len(body)))
	return append(append(out, "WEBP"...), body...)
}

// solidVP8L is the content of a lossless WebP of one colour.
func solidVP8L(width, height int, red, green, blue, alpha byte) string {
	var out []byte
	n := 0
	put := func(value, count int) { // the lowest bit first
		for i := range count {
			if n%8 == 0 {
				out = append(out, 0)
			}
			out[n/8] |= byte(value>>i&1) << (n % 8)
			n++
		}
	}
	put(0x2f, 8)
	put(width-1, 14)
	put(height-1, 14)
	put(1, 1) // has alpha
	put(0, 3) // version
	put(0, 3) // neither a transform, a cache of colours, nor several tables
	for _, symbol := range []byte{green, red, blue, alpha, 0} {
		put(0b101, 3) // a table with one symbol, of 8 bits; it takes no bits of data
		put(int(symbol), 8)
	}
	return string(out)
}

// exifOf is EXIF data with nothing but an orientation.
func exifOf(order binary.AppendByteOrder, magic string, orientation uint16) []byte {
	b := order.AppendUint32([]byte(magic), 8)
	b = order.AppendUint16(b, 2)
	for _, entry := range [][2]uint16{{0x10f, 7}, {0x112, orientation}} { // the maker comes first in real files
		b = order.AppendUint16(b, entry[0])
		b = order.AppendUint16(b, 3)
		b = order.AppendUint32(b, 1)
		b = order.AppendUint16(b, entry[1])
		b = order.AppendUint16(b, 0)
	}
	return order.AppendUint32(b, 0)
}
