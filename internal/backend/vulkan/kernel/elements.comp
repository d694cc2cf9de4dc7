#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Operations on single values; OP says which. Beside small.cu: columns are taken one by one, whatever `quads` says.
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint OP = 0;
ARGS(uint64_t dst; uint64_t w; uint64_t index; In x; In y; int rows; int cols; int ds; int quads; float s;)

const uint COPY = 0, ADD = 1, BIAS = 2, SCALE = 3, SILU = 4, GELU = 5, SIGMOID = 6, SOFTCAP = 7, GATHER = 8,
	ADD_GATED = 9;

float value(int r, int c, float old) {
	if (OP == GATHER) return in_sum(a.x, I(a.index).v[r], c, 1);
	float p = in1(a.x, r, c), q = 0;
	if (OP == ADD || OP == SILU || OP == GELU || OP == SIGMOID) q = in1(a.y, r, c);
	if (OP == ADD_GATED) q = in1(a.y, r, 0); // one gate for a row
	precise float v = p;
	switch (OP) {
	case ADD: v = p + q; break;
	case BIAS: v = p + F(a.w).v[c]; break;
	case SCALE: v = p * a.s; break;
	case SILU: v = silu(p) * q; break;
	case GELU: v = gelu(p) * q; break;
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
