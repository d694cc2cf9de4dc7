package vec

// Axpy adds a*x to y, one fused (generic: rounded) multiply-add per element.
func Axpy(y []float32, a float32, x []float32) { ops().axpy(y, x[:len(y)], y, a) }

// Add stores a+b in dst.
func Add(dst, a, b []float32) { ops().add(dst, a[:len(dst)], b[:len(dst)]) }

// Scale stores a*s in dst.
func Scale(dst, a []float32, s float32) { ops().scale(dst, a[:len(dst)], s) }

// Sigmoid stores 1/(1+e^-x) in dst.
func Sigmoid(dst, x []float32) { ops().sigmoid(dst, x[:len(dst)]) }

// AddGated adds sigmoid(gate)*x to y.
func AddGated(y []float32, gate float32, x []float32) {
	b := getScratch(1) // what a function of the table sees would leave the stack
	g, f := *b, ops()
	g[0] = gate
	f.sigmoid(g, g)
	f.axpy(y, x[:len(y)], y, g[0])
	scratch.Put(b)
}

// SiluMul stores silu(gate)*up in dst.
func SiluMul(dst, gate, up []float32) { ops().siluMul(dst, gate[:len(dst)], up[:len(dst)]) }

// GeluMul stores gelu(gate)*up in dst, with gelu in its tanh form
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
func GeluMul(dst, gate, up []float32) { ops().geluMul(dst, gate[:len(dst)], up[:len(dst)]) }

// SigmoidMul stores x*sigmoid(gate) in dst.
func SigmoidMul(dst, x, gate []float32) { ops().sigmoidMul(dst, x[:len(dst)], gate[:len(dst)]) }

// Softcap stores c*tanh(x/c) in dst.
func Softcap(dst, x []float32, c float32) { ops().softcap(dst, x[:len(dst)], c) }
