#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Operations on single values; OP says which. Beside small.cu: columns are taken one by one, whatever `quads` says.
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint OP = 0;
ARGS(uint64_t dst; uint64_t w; uint64_t index; In x; In y; int rows; int cols; int ds; int quads; float s; float t;)

const uint COPY = 0, ADD = 1, BIAS = 2, SCALE = 3, SILU = 4, GELU = 5, SIGMOID = 6, SOFTCAP = 7, GATHER = 8,
	ADD_GATED = 9, ERF = 10, QUICK = 11, ONLY_SILU = 12, ONLY_GELU = 13, ONLY_ERF = 14, ONLY_QUICK = 15, CLAMP = 16,
	CLAMPED = 17, EXPERT_BIAS = 18;

// backend.ClampedSwiGLU. NaN stays NaN.
float clamped_swiglu(float gate, float up) {
	precise float u = (up < -7.0 ? -7.0 : up > 7.0 ? 7.0 : up) + 1.0;
	precise float y = quick_gelu(gate > 7.0 ? 7.0 : gate) * u;
	return y;
}

float value(int r, int c, float old) {
	if (OP == GATHER) return in_sum(a.x, I(a.index).v[r], c, 1);
	float p = in1(a.x, r, c), q = 0;
	if (OP == ADD || OP == SILU || OP == GELU || OP == ERF || OP == QUICK || OP == SIGMOID || OP == CLAMPED)
		q = in1(a.y, r, c);
	if (OP == ADD_GATED) q = in1(a.y, r, 0); // one gate for a row
	precise float v = p;
	switch (OP) {
	case ADD: v = p + q; break;
	case BIAS: v = p + F(a.w).v[c]; break;
	case EXPERT_BIAS: v = p + F(a.w).v[I(a.index).v[r] * a.cols + c]; break;
	case SCALE: v = p * a.s; break;
	case SILU: v = silu(p) * q; break;
	case GELU: v = gelu(p) * q; break;
	case ERF: v = gelu_erf(p) * q; break;
	case QUICK: v = quick_gelu(p) * q; break;
	case CLAMPED: v = clamped_swiglu(p, q); break;
	case ONLY_SILU: v = silu(p); break;
	case ONLY_GELU: v = gelu(p); break;
	case ONLY_ERF: v = gelu_erf(p); break;
	case ONLY_QUICK: v = quick_gelu(p); break;
	case CLAMP: v = p < a.s ? a.s : p > a.t ? a.t : p; break;
	case SIGMOID: v = p * sigmoid(q); break;
	case SOFTCAP: v = a.s * tanh_(p / a.s); break;
	case ADD_GATED: v = fma(sigmoid(q), p, old); break;
	}
	return v;
}

void main() {
	int total = a.rows * a.cols;
	for (int i = BID * 256 + int(gl_LocalInvocationIndex); i < total; i += GDIM * 256) {
		int r = i / a.cols, c = i - r * a.cols;
		F d = F(a.dst + uint64_t(4) * (int64_t(r) * a.ds + c));
		d.v[0] = value(r, c, OP == ADD_GATED ? d.v[0] : 0.0);
	}
}
