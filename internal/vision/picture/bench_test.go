package picture

import "testing"

// BenchmarkResize is a photograph of 12 million pixels, to the largest size that Qwen's models take.
func BenchmarkResize(b *testing.B) {
	m := New(4000, 3000)
	for i := range m.Pix {
		m.Pix[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(m.Pix)))
	for b.Loop() {
		Resize(m, 2336, 1760, Stretch)
	}
}

// BenchmarkJPEG is a small 4:2:0 photograph; mostly chroma and conversion to RGB.
func BenchmarkJPEG(b *testing.B) {
	data := file(b, "exif6_64x40.jpg")
	for b.Loop() {
		if _, err := Decode(data, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
