#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t x; uint64_t co; uint64_t si; int rows; int heads; int half_; int xs; int cs; int ss;)

void main() {
	int total = a.rows * a.half_;
	for (int i = BID * 256 + int(gl_LocalInvocationIndex); i < total; i += GDIM * 256) {
		int r = i / a.half_, c = i - r * a.half_, t = r / a.heads;
		F x = F(a.x + uint64_t(4) * (int64_t(r) * a.xs + c));
		float u = x.v[0], v = x.v[a.half_];
		float cn = F(a.co + uint64_t(4) * (int64_t(t) * a.cs + c)).v[0],
			sn = F(a.si + uint64_t(4) * (int64_t(t) * a.ss + c)).v[0];
		precise float p = u * cn - v * sn;
		precise float q = u * sn + v * cn;
		x.v[0] = p;
		x.v[a.half_] = q;
	}
}
