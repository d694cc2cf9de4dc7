// Package picture turns the bytes of an image file into the pixels that a vision tower takes: it decodes PNG, JPEG,
// GIF, WebP and BMP to RGB, finds the size that suits a token budget, and resizes with Pillow's bicubic filter, bit for
// bit.
//
// Two ways are offered wherever they differ (Like): that of the implementations the models were trained with
// (transformers and Pillow), and that of llama.cpp, whose numbers tests compare with.
//
// Files are hostile: size and format are checked before anything is decoded (Limits), and a bad file is an error of one
// line. Functions keep no state and may be called from several goroutines at once.
package picture

// Like says whose way of reading images is followed.
type Like int

const (
	Reference Like = iota // transformers and Pillow: EXIF orientation is applied, images are stretched to their size
	LlamaCpp              // llama.cpp: EXIF orientation is ignored, images keep their aspect ratio between black bars
)

// Fit is how Resize fills the new size.
func (l Like) Fit() Fit {
	if l == LlamaCpp {
		return Letterbox
	}
	return Stretch
}

// Image is an image in memory.
type Image struct {
	Width, Height int
	Pix           []byte // red, green, blue: [Height, Width, 3]
}

// New returns a black image.
func New(width, height int) *Image {
	return &Image{Width: width, Height: height, Pix: make([]byte, 3*width*height)}
}

// row is row y of the image.
func (m *Image) row(y int) []byte { return m.Pix[3*m.Width*y:][:3*m.Width] }
