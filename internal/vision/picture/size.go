package picture

import "math"

// Sizing is a rule for the size that an image of any size is resized to.
type Sizing int

const (
	// SizeQwen keeps the size, rounded to whole tokens, if it lies between the smallest and the largest number of
	// tokens, and shrinks or enlarges it otherwise. The reference of Qwen's models.
	SizeQwen Sizing = iota
	// SizeGemma shrinks or enlarges every image to the largest size within the largest number of tokens, which is a
	// budget: 70, 140, 280, 560 or 1120. The reference of Gemma 4.
	SizeGemma
	// SizeLlamaCpp is llama.cpp's rule for all of them: as SizeQwen, with other rounding.
	SizeLlamaCpp
)

// Size returns the width and height that an image of w x h pixels is resized to, both multiples of f, the side of the
// square that becomes one token (patch size times merged patches). W/f*H/f is its number of tokens. A side is never
// shorter than f, so a thin image can have more tokens than maxTokens.
func Size(w, h, f, minTokens, maxTokens int, rule Sizing) (W, H int) {
	smallest, largest := minTokens*f*f, maxTokens*f*f
	switch rule {
	case SizeGemma:
		return sizeGemma(w, h, f, maxTokens)
	case SizeLlamaCpp:
		return sizeLlamaCpp(w, h, f, smallest, largest)
	}
	return sizeQwen(w, h, f, smallest, largest)
}

// sizeQwen is smart_resize of transformers. Python rounds a half to the even neighbour, so a side can become 0, which
// is below any smallest size.
func sizeQwen(w, h, f, smallest, largest int) (W, H int) {
	width, height, side, area := float64(w), float64(h), float64(f), float64(w)*float64(h)
	W, H = int(math.RoundToEven(width/side))*f, int(math.RoundToEven(height/side))*f
	switch {
	case W*H > largest:
		shrink := math.Sqrt(area / float64(largest))
		W, H = int(math.Floor(width/shrink/side))*f, int(math.Floor(height/shrink/side))*f
	case W*H < smallest:
		enlarge := math.Sqrt(float64(smallest) / area)
		W, H = int(math.Ceil(width*enlarge/side))*f, int(math.Ceil(height*enlarge/side))*f
	}
	return max(W, f), max(H, f)
}

// sizeGemma is get_aspect_ratio_preserving_size of transformers.
func sizeGemma(w, h, f, maxTokens int) (W, H int) {
	width, height, side := float64(w), float64(h), float64(f)
	scale := math.Sqrt(float64(maxTokens*f*f) / (width * height))
	W, H = int(math.Floor(scale*width/side))*f, int(math.Floor(scale*height/side))*f
	switch { // thinner than one token at this scale: as many tokens in a row as the aspect ratio has
	case H == 0:
		W = max(1, min(w/h, maxTokens)) * f
	case W == 0:
		H = max(1, min(h/w, maxTokens)) * f
	}
	return max(W, f), max(H, f)
}

// sizeLlamaCpp is calc_size_preserved_ratio of llama.cpp, which computes in float32 and rounds a half up. The
// conversions keep compilers from computing more precisely.
func sizeLlamaCpp(w, h, f, smallest, largest int) (W, H int) {
	width, height, side := float32(w), float32(h), float32(f)
	area := float32(height * width)
	tokens := func(pixels float32) float64 { return float64(float32(pixels / side)) }
	root := func(v float32) float32 { return float32(math.Sqrt(float64(v))) } // exact: double has more than twice the bits
	W, H = max(f, int(math.Round(tokens(width)))*f), max(f, int(math.Round(tokens(height)))*f)
	switch {
	case W*H > largest:
		shrink := root(float32(area / float32(largest)))
		W = max(f, int(math.Floor(tokens(float32(width/shrink))))*f)
		H = max(f, int(math.Floor(tokens(float32(height/shrink))))*f)
	case W*H < smallest:
		enlarge := root(float32(float32(smallest) / area))
		W = int(math.Ceil(tokens(float32(width*enlarge)))) * f
		H = int(math.Ceil(tokens(float32(height*enlarge)))) * f
	}
	return W, H
}
