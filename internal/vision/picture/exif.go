package picture

import (
	"bytes"
	"encoding/binary"
)

// orientation is the EXIF orientation of a file, 1 to 8; 1 (upright) if it has none or a broken one.
func orientation(f format, data []byte) int {
	switch f.name {
	case "JPEG":
		for marker, body := range jpegSegments(data) {
			if exif, ok := bytes.CutPrefix(body, []byte("Exif\x00\x00")); ok && marker == 0xe1 {
				return tiffOrientation(exif)
			}
		}
	case "PNG":
		for rest := data[8:]; len(rest) >= 12; { // length, name, content, checksum
			n := binary.BigEndian.Uint32(rest)
			if uint64(n) > uint64(len(rest)-12) {
				break
			}
			if string(rest[4:8]) == "eXIf" {
				return tiffOrientation(rest[8:][:n])
			}
			rest = rest[12+n:]
		}
	case "WebP":
		if exif, ok := riffChunk(data, "EXIF"); ok {
			return tiffOrientation(bytes.TrimPrefix(exif, []byte("Exif\x00\x00")))
		}
	}
	return 1
}

// tiffOrientation looks for tag 0x112 in the first directory of a TIFF header.
func tiffOrientation(b []byte) int {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(b, []byte("II*\x00")):
		order = binary.LittleEndian
	case bytes.HasPrefix(b, []byte("MM\x00*")):
		order = binary.BigEndian
	default:
		return 1
	}
	if len(b) < 8 {
		return 1
	}
	at := uint64(order.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return 1
	}
	entries := int(order.Uint16(b[at:]))
	for rest := b[at+2:]; entries > 0 && len(rest) >= 12; entries-- { // tag, type, count, value
		const short = 3
		if order.Uint16(rest) == 0x112 && order.Uint16(rest[2:]) == short && order.Uint32(rest[4:]) == 1 {
			if o := int(order.Uint16(rest[8:])); o >= 1 && o <= 8 {
				return o
			}
			return 1
		}
		rest = rest[12:]
	}
	return 1
}

// upright turns and mirrors an image from its EXIF orientation.
func upright(m *Image, orientation int) *Image {
	if orientation == 1 {
		return m
	}
	width, height := m.Width, m.Height
	if orientation >= 5 {
		width, height = height, width
	}
	// The pixel at (x, y) of the new image is the old one at first + x*right + y*down, counted in pixels.
	lastX, lastY := m.Width-1, (m.Height-1)*m.Width
	var first, right, down int
	switch orientation {
	case 2: // mirrored
		first, right, down = lastX, -1, m.Width
	case 3: // half a turn
		first, right, down = lastX+lastY, -1, -m.Width
	case 4: // upside down, mirrored
		first, right, down = lastY, 1, -m.Width
	case 5: // rows are columns
		first, right, down = 0, m.Width, 1
	case 6: // a quarter turn clockwise makes it upright
		first, right, down = lastY, -m.Width, 1
	case 7: // rows are columns, from the lower right corner
		first, right, down = lastX+lastY, -m.Width, -1
	case 8: // a quarter turn counterclockwise
		first, right, down = lastX, m.Width, -1
	}
	turned := New(width, height)
	for y := range height {
		out, at := turned.row(y), 3*(first+y*down)
		for x := 0; x < len(out); x += 3 {
			copy(out[x:x+3], m.Pix[at:])
			at += 3 * right
		}
	}
	return turned
}

// jpegSegments goes through the segments of a JPEG up to its end: markers with their content, and scans (0xda) with
// their header.
func jpegSegments(data []byte) func(yield func(marker byte, body []byte) bool) {
	return func(yield func(marker byte, body []byte) bool) {
		const startOfImage, endOfImage = 0xd8, 0xd9
		for {
			at := bytes.IndexByte(data, 0xff)
			if at < 0 || at+1 >= len(data) {
				return
			}
			marker := data[at+1]
			switch {
			case marker == 0xff: // a fill byte
				data = data[at+1:]
				continue
			case marker == endOfImage:
				return
			case marker == 0 || marker == startOfImage || marker >= 0xd0 && marker <= 0xd7:
				data = data[at+2:] // a byte 0xff of a scan, and markers without content
				continue
			}
			data = data[at+2:]
			if len(data) < 2 {
				return
			}
			n := int(binary.BigEndian.Uint16(data))
			if n < 2 || n > len(data) {
				return
			}
			if !yield(marker, data[2:n]) {
				return
			}
			data = data[n:]
		}
	}
}

// jpegScans counts the scans of a JPEG.
func jpegScans(data []byte) int {
	scans := 0
	for marker := range jpegSegments(data) {
		if marker == 0xda {
			scans++
		}
	}
	return scans
}

// riffChunk is the content of the first chunk with a name in a WebP file.
func riffChunk(data []byte, name string) ([]byte, bool) {
	for rest := data[12:]; len(rest) >= 8; {
		n := uint64(binary.LittleEndian.Uint32(rest[4:]))
		if n > uint64(len(rest)-8) {
			break
		}
		if string(rest[:4]) == name {
			return rest[8:][:n], true
		}
		n += n & 1 // chunks begin at even offsets
		rest = rest[min(8+n, uint64(len(rest))):]
	}
	return nil, false
}

// animatedWebP reports whether a WebP file says that it has frames.
func animatedWebP(data []byte) bool {
	const animation = 1 << 1
	x, ok := riffChunk(data, "VP8X")
	return ok && len(x) > 0 && x[0]&animation != 0
}
