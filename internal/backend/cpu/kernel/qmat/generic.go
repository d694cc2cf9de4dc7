package qmat

import "math"

// mulGeneric is the definition of the product; every kernel gives its bits.
func (m *Matrix) mulGeneric(f *format, y []float32, ys int, x *Acts, r0, r1 int) {
	stride := m.K / f.len * f.bytes
	var u unpacked
	for r := r0; r < r1; r++ {
		row := m.Data[r*stride:][:stride]
		for b := range x.blocks {
			n := f.block(&u, row, b, m.K)
			for c := range x.n {
				sum := float32(0)
				if b > 0 {
					sum = y[c*ys+r]
				}
				y[c*ys+r] = addBlock(f.kind, &u, &x.data[b*x.n+c], n, sum)
			}
		}
	}
}

// addBlock adds the product of n values (a multiple of 32) to y.
func addBlock(k kind, u *unpacked, x *record, n int, y float32) float32 {
	switch k {
	case off32:
		for j := range n / 32 {
			y = fma32(scaled(dot32(u, x, 32*j), u.scale[j]), x.xs[j], y)
		}
	case min32:
		for j := range n / 32 {
			y = fma32(scaled(dot32(u, x, 32*j), u.scale[j]), x.xs[j], y)
			y = fma32(u.min[j], x.ms32[j], y)
		}
	default:
		for h := 0; h < n/16; h += 8 {
			for _, o := range order16 {
				if i := h + o; i < n/16 {
					y = fma32(scaled(dot16(u, x, 16*i), u.scale[i]), x.xs[i/2], y)
					if k == min16 {
						y = fma32(u.min[i], x.ms16[i], y)
					}
				}
			}
		}
	}
	return y
}

func dot32(u *unpacked, x *record, at int) (d int32) {
	p, q := (*[32]int8)(u.q[at:]), (*[32]int8)(x.q[at:])
	for i := range p {
		d += int32(p[i]) * int32(q[i])
	}
	return d
}

func dot16(u *unpacked, x *record, at int) (d int32) {
	p, q := (*[16]int8)(u.q[at:]), (*[16]int8)(x.q[at:])
	for i := range p {
		d += int32(p[i]) * int32(q[i])
	}
	return d
}

// scaled rounds the product; the conversion keeps compilers from fusing it.
func scaled(dot int32, scale float32) float32 { return float32(float32(dot) * scale) }

// fma32 rounds a*b+c once. The product is exact in float64; rounding the sum to odd
// keeps the second rounding correct.
func fma32(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	t := s - p
	err := (p - (s - t)) + (z - t)
	if bits := math.Float64bits(s); err != 0 && bits&1 == 0 {
		if (err > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}
