//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// SPIR-V of cooperative matrices, as NVIDIA's extension numbers it and as Khronos's does.
const (
	opExtension  = 10
	opCapability = 17
	opConstant   = 43
	opTypeInt    = 21
	opTrue       = 41
	opFalse      = 42

	nvCapability = 5357
	nvType       = 5358
	nvLoad       = 5359
	nvMulAdd     = 5361

	khrCapability = 6022
	khrType       = 4456
	khrLoad       = 4457
	khrMulAdd     = 4459
	allSigned     = 15 // all four matrices have signed components
)

var errNoMatrices = errors.New("not a module with cooperative matrices of NVIDIA's extension")

// khronos turns a module that uses NVIDIA's extension for cooperative matrices, the one that Debian's compiler knows,
// into one that uses Khronos's, which other drivers have too. Types say in addition what a matrix is for, loads
// name the layout before the stride, and products say that components are signed.
func khronos(code []byte) ([]byte, error) {
	w := make([]uint32, len(code)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	const header, bound = 5, 3
	if len(w) < header {
		return nil, errNoMatrices
	}
	type instruction struct {
		op   uint32
		args []uint32
	}
	var list []instruction
	for at := header; at < len(w); {
		n := int(w[at] >> 16)
		if n == 0 || at+n > len(w) {
			return nil, fmt.Errorf("%w: an instruction of %d words at %d", errNoMatrices, n, at)
		}
		list = append(list, instruction{w[at] & 0xffff, slices.Clone(w[at+1 : at+n])})
		at += n
	}
	// What is multiplied says which type is which; a value's type is the first word of the instruction that makes it.
	types := map[uint32]bool{}
	of := map[uint32]uint32{} // types of values
	use := map[uint32]uint32{}
	layout := map[uint32]uint32{} // constants: false is rows after each other, true columns
	for _, i := range list {
		switch i.op {
		case nvType:
			types[i.args[0]] = true
		case opFalse:
			layout[i.args[1]] = 0
		case opTrue:
			layout[i.args[1]] = 1
		case nvMulAdd:
			for k := range 3 {
				use[of[i.args[2+k]]] = uint32(k)
			}
		}
		if len(i.args) > 1 && types[i.args[0]] {
			of[i.args[1]] = i.args[0]
		}
	}
	if len(types) == 0 || len(use) != len(types) {
		return nil, errNoMatrices
	}
	// Constants 0 to 2 of an unsigned type stand for uses and layouts.
	i := slices.IndexFunc(list, func(i instruction) bool { return i.op == opTypeInt && i.args[1] == 32 && i.args[2] == 0 })
	if i < 0 {
		return nil, errNoMatrices
	}
	unsigned, next := list[i].args[0], w[bound]
	number := func(v uint32) uint32 { return next + v }
	out := slices.Clone(w[:header])
	out[bound] += 3
	put := func(op uint32, args ...uint32) { out = append(append(out, uint32(len(args)+1)<<16|op), args...) }
	declared := false
	for _, i := range list {
		a := i.args
		if !declared && i.op == nvType {
			for v := range uint32(3) {
				put(opConstant, unsigned, number(v), v)
			}
			declared = true
		}
		switch i.op {
		case opCapability:
			if a[0] == nvCapability {
				a[0] = khrCapability
			}
			put(opCapability, a...)
		case opExtension:
			if text(a) == "SPV_NV_cooperative_matrix" {
				a = words("SPV_KHR_cooperative_matrix")
			}
			put(opExtension, a...)
		case nvType:
			put(khrType, append(a, number(use[a[0]]))...)
		case nvLoad: // type, result, pointer, stride, layout, how
			put(khrLoad, slices.Concat(a[:3], []uint32{number(layout[a[4]]), a[3]}, a[5:])...)
		case nvMulAdd:
			put(khrMulAdd, append(a, allSigned)...)
		default:
			put(i.op, a...)
		}
	}
	b := make([]byte, 0, 4*len(out))
	for _, v := range out {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b, nil
}

// text is the string in words, which ends in zeros.
func text(a []uint32) string {
	var b []byte
	for _, v := range a {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return goText(b)
}

func words(s string) []uint32 {
	b := append([]byte(s), 0)
	b = append(b, make([]byte, -len(b)&3)...)
	w := make([]uint32, len(b)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}
