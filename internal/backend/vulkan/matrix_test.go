//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// TestMatrices: products by cooperative matrices, or by the loops that stand for them, have the bits of products of
// bytes, whatever the batch.
func TestMatrices(t *testing.T) {
	d := openFirst(t, Options{Loops: os.Getenv("STROBE_VULKAN_MATRICES") == ""})
	defer d.Close()
	if err := d.testMatrices(); err != nil {
		t.Fatal(err)
	}
	const rows, cols, tokens = 300, 1024, 70
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q5_K, quant.Q6_K, quant.Q2_K, quant.Q3_K} {
		random := rand.New(rand.NewPCG(uint64(typ), 2))
		raw := make([]byte, rows*typ.RowBytes(cols))
		for i := range raw { // codes and scales of all sizes
			raw[i] = byte(random.Uint32())
		}
		tame(typ, raw)
		b, err := gpu.NewTrialOf(d, typ, raw, rows, cols, tokens)
		if err != nil {
			t.Fatal(err)
		}
		want := b.Product(tokens, false)
		sizes := []int{7, 16}
		if typ == quant.Q4_K {
			sizes = []int{8, 9, 17, tokens}
		}
		for _, n := range sizes {
			if got := b.Product(n, true); !gpu.SameBits(got, want[:len(got)]) {
				t.Errorf("%s: %d rows by matrices are not the bits that bytes give", typ, n)
			}
		}
		if b.Err != nil {
			t.Fatal(b.Err)
		}
		b.Close()
	}
}

// tame replaces the halves of random blocks that are no numbers.
func tame(typ quant.Type, raw []byte) {
	at := map[quant.Type][]int{quant.Q4_K: {1, 3}, quant.Q5_K: {1, 3}, quant.Q6_K: {209}, quant.Q2_K: {81, 83},
		quant.Q3_K: {109}}[typ]
	for b := range slices.Chunk(raw, typ.BlockBytes()) {
		for _, i := range at {
			b[i] = b[i]&^0x7c | 0x20
		}
	}
}

// TestKhronos: the module for cooperative matrices becomes one that uses Khronos's instructions.
func TestKhronos(t *testing.T) {
	code, err := spirv(matrixModule)
	if err != nil {
		t.Fatal(err)
	}
	out, err := khronos(code)
	if err != nil {
		t.Fatal(err)
	}
	count := func(code []byte, op uint32) (n int) {
		w := make([]uint32, len(code)/4)
		for i := range w {
			w[i] = binary.LittleEndian.Uint32(code[4*i:])
		}
		for i := 5; i < len(w); i += int(w[i] >> 16) {
			if w[i]&0xffff == op {
				n++
			}
		}
		return n
	}
	for nv, khr := range map[uint32]uint32{nvType: khrType, nvLoad: khrLoad, nvMulAdd: khrMulAdd} {
		if n := count(code, nv); n == 0 || count(out, khr) != n || count(out, nv) != 0 {
			t.Errorf("%d instructions %d became %d of %d, and %d are left", n, nv, count(out, khr), khr, count(out, nv))
		}
	}
	if _, err := khronos(code[:len(code)/2+2&^3]); err == nil {
		t.Error("half a module is accepted")
	}
	plain, err := spirv("pack")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := khronos(plain); err == nil {
		t.Error("a module without matrices is accepted")
	}
}
