package qmat

import (
	"unsafe"

	"strobe/internal/quant"
)

// kind says how the sub-blocks of a format enter the sum; there is one set of micro
// kernels per kind.
type kind int

const (
	off32 kind = iota // sub-blocks of 32, signed codes
	min32             // sub-blocks of 32, unsigned codes and a minimum
	off16             // sub-blocks of 16, signed codes
	min16             // sub-blocks of 16, unsigned codes and a minimum
)

// order16 is the order in which the sub-blocks of 16 of one half block (128 values) are
// added: the order in which the two nibbles of Q6_K's bytes come up.
var order16 = [8]int{0, 4, 1, 5, 2, 6, 3, 7}

// unpacked is up to 256 values of one row: value i is scale[i/sub]*q[i] + min[i/sub].
type unpacked struct {
	_     [0]uint64 // aligns q
	q     [256]int8
	scale [16]float32
	min   [16]float32
}

// format is how the products read one weight type.
type format struct {
	layout *quant.Layout
	kind   kind
	len    int  // values per block of the file
	bytes  int  // bytes per block of the file
	raise  int8 // added to values that kernels want without a sign; the minimum takes it away
}

// formats has all types with a layout; the others have none.
var formats = func() (fs []format) {
	for _, t := range quant.BlockTypes() {
		l := t.Layout()
		f := format{layout: l, len: t.BlockLen(), bytes: t.BlockBytes()}
		switch {
		case t == quant.IQ2_XS || t == quant.IQ2_S:
			// Their values, from -43 to 43, are too large for the offset of 32 that kernels for signed codes in groups
			// of 16 have.
			f.kind, f.raise = min16, 43
		case l.Sub == 16 && l.Min:
			f.kind = min16
		case l.Sub == 16:
			f.kind = off16
		case l.Min:
			f.kind = min32
		default:
			f.kind = off32
		}
		fs = append(fs, make([]format, int(t)+1-len(fs))...)
		fs[t] = f
	}
	return fs
}()

func formatOf(t quant.Type) *format {
	if int(t) >= len(formats) || formats[t].layout == nil {
		return nil
	}
	return &formats[t]
}

// addBytes adds eight bytes to eight others.
func addBytes(a, b uint64) uint64 {
	const high = 0x8080808080808080
	return (a&^high + b&^high) ^ (a^b)&high
}

// block decodes block b (256 values, or what is left of k) of a row and returns the number
// of values.
func (f *format) block(u *unpacked, row []byte, b, k int) int {
	n := min(blockLen, k-b*blockLen)
	src := row[b*blockLen/f.len*f.bytes:]
	var head quant.Block
	codes := (*[256]byte)(unsafe.Pointer(&u.q)) // which become values below
	for at := 0; at < n; at += f.len {
		f.layout.Unpack(&head, codes[at:][:f.len], src[:f.bytes])
		sub, subs := at/f.layout.Sub, f.len/f.layout.Sub
		f.layout.Floats(&head, u.scale[sub:][:subs], u.min[sub:][:subs])
		src = src[f.bytes:]
	}
	if f.layout.Table != nil {
		for i, code := range codes {
			codes[i] = byte(f.layout.Table[code&15])
		}
	} else {
		words := (*[32]uint64)(unsafe.Pointer(&u.q))
		plus := uint64(byte(f.raise)-f.layout.Offset) * 0x0101010101010101
		for i, w := range words {
			words[i] = addBytes(w, plus)
		}
	}
	if f.raise != 0 {
		for j, s := range u.scale {
			u.min[j] = -float32(f.raise) * s
		}
	}
	return n
}
