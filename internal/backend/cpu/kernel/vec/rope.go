package vec

// RoPE rotates the pairs (i, i+nRot/2), i < nRot/2, of every head in x, whose
// length is a multiple of headDim; the elements from nRot on stay as they are.
// cos and sin have nRot/2 entries.
func RoPE(x []float32, headDim, nRot int, cos, sin []float32) {
	h, rotate := nRot/2, ops().rotate
	cos, sin = cos[:h], sin[:h]
	for ; len(x) >= headDim && headDim > 0; x = x[headDim:] {
		rotate(x[:h], x[h:2*h], cos, sin)
	}
}

// rotateGeneric turns the pairs (a[i], b[i]).
func rotateGeneric(a, b, cos, sin []float32) {
	for i, c := range cos {
		s, u, v := sin[i], a[i], b[i]
		a[i] = float32(u*c) - float32(v*s)
		b[i] = float32(u*s) + float32(v*c)
	}
}
