package floor

import (
	"encoding/binary"
	"sync/atomic"
)

// sink keeps the compiler from dropping the loops.
var sink atomic.Uint64

// readGeneric touches every cache line once; the rest of a line comes with it.
func readGeneric(b []byte) {
	var s uint64
	for ; len(b) >= 256; b = b[256:] {
		s |= binary.LittleEndian.Uint64(b) | binary.LittleEndian.Uint64(b[64:]) |
			binary.LittleEndian.Uint64(b[128:]) | binary.LittleEndian.Uint64(b[192:])
	}
	sink.Store(s)
}

// genericTurn is the number of products of one turn of dotGeneric.
const genericTurn = 64

func dotGeneric(turns int) {
	var a, b [genericTurn]int8
	for i := range a {
		a[i], b[i] = int8(turns>>i), int8(i)
	}
	var s0, s1, s2, s3 int32
	for range turns {
		for i := 0; i < genericTurn; i += 4 {
			s0 += int32(a[i]) * int32(b[i])
			s1 += int32(a[i+1]) * int32(b[i+1])
			s2 += int32(a[i+2]) * int32(b[i+2])
			s3 += int32(a[i+3]) * int32(b[i+3])
		}
	}
	sink.Store(uint64(s0 + s1 + s2 + s3))
}
