package vec

// Axpy adds a*x to y, one fused (generic: rounded) multiply-add per element.
func Axpy(y []float32, a float32, x []float32) { axpy(y, a, x[:len(y)]) }

// Add stores a+b in dst.
func Add(dst, a, b []float32) { add(dst, a[:len(dst)], b[:len(dst)]) }

// Mul stores the element-wise product in dst.
func Mul(dst, a, b []float32) { mul(dst, a[:len(dst)], b[:len(dst)]) }

// Scale stores a*s in dst.
func Scale(dst, a []float32, s float32) { scale(dst, a[:len(dst)], s) }

// Exp stores e^x in dst.
func Exp(dst, x []float32) { exp(dst, x[:len(dst)]) }

// Sigmoid stores 1/(1+e^-x) in dst.
func Sigmoid(dst, x []float32) { sigmoid(dst, x[:len(dst)]) }

// Silu stores x*sigmoid(x) in dst.
func Silu(dst, x []float32) { silu(dst, x[:len(dst)]) }

// SiluMul stores silu(gate)*up in dst.
func SiluMul(dst, gate, up []float32) { siluMul(dst, gate[:len(dst)], up[:len(dst)]) }

// GeluMul stores gelu(gate)*up in dst, with gelu in its tanh form
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
func GeluMul(dst, gate, up []float32) { geluMul(dst, gate[:len(dst)], up[:len(dst)]) }

// SigmoidMul stores x*sigmoid(gate) in dst.
func SigmoidMul(dst, x, gate []float32) { sigmoidMul(dst, x[:len(dst)], gate[:len(dst)]) }

// Softcap stores c*tanh(x/c) in dst.
func Softcap(dst, x []float32, c float32) { softcap(dst, x[:len(dst)], c) }
