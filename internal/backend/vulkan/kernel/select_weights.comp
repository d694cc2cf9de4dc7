#version 460
#extension GL_GOOGLE_include_directive : require
// The weight of every 8192 columns of a row, in units, as package weight computes it.
#define THREADS 256
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t dst; uint64_t keys; uint64_t groups; uint64_t sums; uint64_t x; int cols; int parts; int stride; int pad;)
shared uint64_t part_sums[256];

// The bits of 2^(i/64).
const uint weight_table[64] = {
	0x3f800000u, 0x3f8164d2u, 0x3f82cd87u, 0x3f843a29u, 0x3f85aac3u, 0x3f871f62u, 0x3f88980fu, 0x3f8a14d5u,
	0x3f8b95c2u, 0x3f8d1adfu, 0x3f8ea43au, 0x3f9031dcu, 0x3f91c3d3u, 0x3f935a2bu, 0x3f94f4f0u, 0x3f96942du,
	0x3f9837f0u, 0x3f99e046u, 0x3f9b8d3au, 0x3f9d3edau, 0x3f9ef532u, 0x3fa0b051u, 0x3fa27043u, 0x3fa43516u,
	0x3fa5fed7u, 0x3fa7cd94u, 0x3fa9a15bu, 0x3fab7a3au, 0x3fad583fu, 0x3faf3b79u, 0x3fb123f6u, 0x3fb311c4u,
	0x3fb504f3u, 0x3fb6fd92u, 0x3fb8fbafu, 0x3fbaff5bu, 0x3fbd08a4u, 0x3fbf179au, 0x3fc12c4du, 0x3fc346cdu,
	0x3fc5672au, 0x3fc78d75u, 0x3fc9b9beu, 0x3fcbec15u, 0x3fce248cu, 0x3fd06334u, 0x3fd2a81eu, 0x3fd4f35bu,
	0x3fd744fdu, 0x3fd99d16u, 0x3fdbfbb8u, 0x3fde60f5u, 0x3fe0ccdfu, 0x3fe33f89u, 0x3fe5b907u, 0x3fe8396au,
	0x3feac0c7u, 0x3fed4f30u, 0x3fefe4bau, 0x3ff28177u, 0x3ff5257du, 0x3ff7d0dfu, 0x3ffa83b3u, 0x3ffd3e0cu
};

uint64_t weight_units(float x) {
	if (!(x > -87.0)) return 0;
	precise float t = x * 92.33248261893209;
	t = t - 0.5;
	int n = int(t);
	precise float hi = float(n) * 0.010833740234375, lo = float(n) * -3.3155381258549027e-06;
	precise float r = x - hi;
	r = r - lo;
	precise float half_square = r * r;
	half_square = half_square * 0.5;
	precise float p = 1.0 + r;
	p = p + half_square;
	precise float w = uintBitsToFloat(weight_table[n & 63]) * uintBitsToFloat(uint((n >> 6) + 127) << 23);
	w = w * p;
	precise float upper = w * 4194304.0; // the upper 22 of 44 bits, then the lower
	uint high = uint(upper);
	precise float rest = upper - float(high);
	rest = rest * 4194304.0;
	return (uint64_t(high) << 22) + uint(rest);
}

void main() {
	uint tid = thread();
	int part = BID, row = BIDY;
	L keys = L(a.keys + uint64_t(8) * (int64_t(row) * a.parts));
	uint64_t best = 0;
	for (int i = 0; i < a.parts; i++) best = max(best, keys.v[i]);
	float top = key_value(best);
	F x = F(a.x + uint64_t(4) * (int64_t(row) * a.stride));
	uint64_t sum = 0;
	for (int i = 0; i < EACH; i++) {
		int c = part_column(part, i, tid);
		if (c >= a.cols) break;
		precise float d = x.v[c] - top;
		sum += weight_units(d);
	}
	part_sums[tid] = sum;
	for (uint step = 128; step > 0; step >>= 1) {
		barrier();
		if (tid < step) part_sums[tid] += part_sums[tid + step];
	}
	if (tid == 0) L(a.sums + uint64_t(8) * (int64_t(row) * a.parts + part)).v[0] = part_sums[0];
}
