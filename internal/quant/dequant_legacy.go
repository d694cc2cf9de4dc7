package quant

import "encoding/binary"

// The 32-wide types. Byte j of the codes carries element j in its low nibble
// and element j+16 in its high nibble.

func dequantQ40(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 18; dst, src = dst[32:], src[18:] {
		b, y := (*[18]byte)(src), (*[32]float32)(dst)
		d := half(b[:])
		for j := range 16 {
			q := b[2+j]
			y[j] = float32(int32(q&15)-8) * d
			y[j+16] = float32(int32(q>>4)-8) * d
		}
	}
}

func dequantQ41(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 20; dst, src = dst[32:], src[20:] {
		b, y := (*[20]byte)(src), (*[32]float32)(dst)
		d, m := half(b[:]), half(b[2:])
		for j := range 16 {
			q := b[4+j]
			y[j] = float32(float32(int32(q&15))*d) + m
			y[j+16] = float32(float32(int32(q>>4))*d) + m
		}
	}
}

func dequantQ50(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 22; dst, src = dst[32:], src[22:] {
		b, y := (*[22]byte)(src), (*[32]float32)(dst)
		d, qh := half(b[:]), binary.LittleEndian.Uint32(b[2:])
		for j := range 16 {
			q := uint32(b[6+j])
			lo := q&15 | qh>>j<<4&16
			hi := q>>4 | qh>>(j+12)&16
			y[j] = float32(int32(lo)-16) * d
			y[j+16] = float32(int32(hi)-16) * d
		}
	}
}

func dequantQ51(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 24; dst, src = dst[32:], src[24:] {
		b, y := (*[24]byte)(src), (*[32]float32)(dst)
		d, m, qh := half(b[:]), half(b[2:]), binary.LittleEndian.Uint32(b[4:])
		for j := range 16 {
			q := uint32(b[8+j])
			lo := q&15 | qh>>j<<4&16
			hi := q>>4 | qh>>(j+12)&16
			y[j] = float32(float32(int32(lo))*d) + m
			y[j+16] = float32(float32(int32(hi))*d) + m
		}
	}
}

func dequantQ80(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 34; dst, src = dst[32:], src[34:] {
		b, y := (*[34]byte)(src), (*[32]float32)(dst)
		d := half(b[:])
		for j := range 32 {
			y[j] = float32(int8(b[2+j])) * d
		}
	}
}
