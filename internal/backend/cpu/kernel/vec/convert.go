package vec

import (
	"encoding/binary"
	"fmt"
	"math"

	"strobe/internal/quant"
)

// Store converts a row of float32 to BF16 or to a type of keys and values (the
// bits of quant.EncodeKV). dst holds exactly the row.
func Store(typ quant.Type, dst []byte, src []float32) {
	dst = dst[:typ.RowBytes(len(src))]
	switch typ {
	case quant.F32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case quant.F16:
		storeF16(dst, src)
	case quant.BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], quant.F32ToBF16(v))
		}
	case quant.Q8_0:
		ops().storeQ80(dst, src)
		quant.TidyQ80(dst)
	default:
		quant.EncodeKV(typ, dst, src)
	}
}

// The codebooks as kernels look them up.
var turbo3, turbo4 = [16]float32(append(quant.Codes(quant.Turbo3), quant.Codes(quant.Turbo3)...)),
	[16]float32(quant.Codes(quant.Turbo4))

// Load is the inverse of [Store]: it widens a row. It is exact.
func Load(typ quant.Type, dst []float32, src []byte) {
	src = src[:typ.RowBytes(len(dst))]
	switch typ {
	case quant.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case quant.F16:
		loadF16(dst, src)
	case quant.BF16:
		loadBF16(dst, src)
	case quant.Q8_0:
		ops().loadQ80(dst, src)
	case quant.Q4_0:
		ops().loadQ40(dst, src)
	case quant.Q4_1:
		ops().loadQ41(dst, src)
	case quant.Turbo3:
		ops().loadTurbo3(dst, src, &turbo3)
	case quant.Turbo4:
		ops().loadTurbo4(dst, src, &turbo4)
	default:
		if err := quant.Dequantize(typ, dst, src); err != nil {
			panic(fmt.Sprintf("vec: load %v: %v", typ, err))
		}
	}
}

// DequantRow widens a row of any type quant can read, such as a row of the
// embedding table. It gives the bits of quant.Dequantize.
func DequantRow(dst []float32, typ quant.Type, src []byte) error {
	switch typ {
	case quant.F32, quant.F16, quant.BF16, quant.Q8_0:
		if len(dst)%typ.BlockLen() == 0 && len(src) == typ.RowBytes(len(dst)) {
			Load(typ, dst, src)
			return nil
		}
	}
	return quant.Dequantize(typ, dst, src)
}

func storeF16Generic(dst []byte, src []float32) {
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], quant.F32ToF16(v))
	}
}

// storeQ80Generic rounds halves away from zero, as ggml's quantize_row_q8_0_ref
// and quant.Quantize do.
func storeQ80Generic(dst []byte, src []float32) {
	for len(src) >= 32 && len(dst) >= 34 {
		var m float32
		for _, v := range src[:32] {
			m = max(m, float32(math.Abs(float64(v))))
		}
		d := m / 127
		var id float32
		if d != 0 {
			id = 1 / d
		}
		binary.LittleEndian.PutUint16(dst, quant.F32ToF16(d))
		for i, v := range src[:32] {
			dst[2+i] = byte(int8(math.Round(float64(v * id))))
		}
		src, dst = src[32:], dst[34:]
	}
}

func loadF16Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = quant.F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func loadBF16Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = quant.BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}
