package picture

import "image"

// Photographs store colour (chroma) at half the resolution of brightness. Go's decoders repeat the samples; libjpeg and
// libwebp interpolate them, and the models saw such images. For a small 4:2:0 file the difference is up to 84 of 255.

// fromJPEG converts with libjpeg's "fancy upsampling" (a triangle filter: three quarters of the nearer sample, one
// quarter of the next one) and its fixed-point conversion to RGB.
func fromJPEG(m *Image, d *image.YCbCr) {
	cb, cr := make([]byte, m.Width+8), make([]byte, m.Width+8) // room for what a whole last sample covers
	sums := make([]int32, m.Width+8)
	for y := range m.Height {
		jpegChroma(cb, sums, d.Cb, d, m, y)
		jpegChroma(cr, sums, d.Cr, d, m, y)
		luma, out := d.Y[y*d.YStride:][:m.Width], m.row(y)
		for x, l := range luma {
			const half = 1 << 15
			lum, blue, red := int32(l)<<16+half, int32(cb[x])-128, int32(cr[x])-128
			out[3*x] = clamp((lum + 91881*red) >> 16)                // 1.402 * 2^16
			out[3*x+1] = clamp((lum - 22554*blue - 46802*red) >> 16) // 0.34414, 0.71414
			out[3*x+2] = clamp((lum + 116130*blue) >> 16)            // 1.772
		}
	}
}

// jpegChroma writes the chroma samples of row y. As in libjpeg, rows and columns beyond the border repeat it, images of
// at most two samples a row and those with a quarter of the columns (4:1:1, 4:1:0) are not interpolated across columns.
func jpegChroma(out []byte, sums []int32, plane []byte, d *image.YCbCr, m *Image, y int) {
	across, down := 1, 1
	switch d.SubsampleRatio {
	case image.YCbCrSubsampleRatio422:
		across = 2
	case image.YCbCrSubsampleRatio420:
		across, down = 2, 2
	case image.YCbCrSubsampleRatio440:
		down = 2
	case image.YCbCrSubsampleRatio411:
		across = 4
	case image.YCbCrSubsampleRatio410:
		across, down = 4, 2
	}
	width, height := (m.Width+across-1)/across, (m.Height+down-1)/down
	near := plane[y/down*d.CStride:][:width]
	if across == 4 || across == 2 && width <= 2 {
		for x := range m.Width {
			out[x] = near[x/across]
		}
		return
	}
	if across == 1 && down == 1 {
		copy(out, near)
		return
	}
	sums = sums[:width]
	if down == 2 {
		other := y/2 - 1 + 2*(y%2)
		far := plane[min(max(other, 0), height-1)*d.CStride:][:width]
		for x := range sums {
			sums[x] = 3*int32(near[x]) + int32(far[x])
		}
	} else {
		for x := range sums {
			sums[x] = int32(near[x])
		}
	}
	if across == 1 { // 4:4:0: odd rows round up, even rows round down, so that no error adds up
		for x, sum := range sums {
			out[x] = byte((sum + 1 + int32(y%2)) >> 2)
		}
		return
	}
	even, odd, shift := int32(1), int32(2), 2
	if down == 2 {
		even, odd, shift = 8, 7, 4
	}
	left := sums[0]
	for x, sum := range sums {
		right := sums[min(x+1, width-1)]
		out[2*x] = byte((3*sum + left + even) >> shift)
		out[2*x+1] = byte((3*sum + right + odd) >> shift)
		left = sum
	}
}

// fromVP8 converts the frame of a lossy WebP. Its brightness and chroma span 16 to 235 and 16 to 240, not 0 to 255 as
// Go's image.YCbCr assumes. Weights and rounding are libwebp's.
func fromVP8(m *Image, d *image.YCbCr) {
	width, height := (m.Width+1)/2, (m.Height+1)/2
	for y := range m.Height {
		near := y / 2 * d.CStride
		far := min(max(y/2-1+2*(y%2), 0), height-1) * d.CStride
		luma, out := d.Y[y*d.YStride:][:m.Width], m.row(y)
		for x, l := range luma {
			here := x / 2
			next := min(max(here-1+2*(x%2), 0), width-1)
			mix := func(plane []byte) int32 {
				n, h := int32(plane[near+here]), int32(plane[near+next])
				v, o := int32(plane[far+here]), int32(plane[far+next])
				return ((n+3*h+3*v+o+8)>>3 + n) >> 1 // (9 n + 3 h + 3 v + o) / 16
			}
			u, v := mix(d.Cb), mix(d.Cr)
			lum := int32(l) * 19077 >> 8 // 255/219, with 14 bits after the point; 8 of them go
			out[3*x] = clamp((lum + v*26149>>8 - 14234) >> 6)
			out[3*x+1] = clamp((lum - u*6419>>8 - v*13320>>8 + 8708) >> 6)
			out[3*x+2] = clamp((lum + u*33050>>8 - 17685) >> 6)
		}
	}
}

func clamp(v int32) byte { return byte(min(max(v, 0), 255)) }
