#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Cosines and sines of pos*inv. At position 200,000 a float32 angle is off by a hundredth, and many devices have no
// float64: so the angle is counted in turns, in integers. pos*inv/2pi is (pos times the 24 bits of inv) times 96 bits
// of 1/2pi, shifted by inv's exponent; of that the 64 bits behind the point are the fraction of a turn.
layout(local_size_x = 128) in;
ARGS(uint64_t co; uint64_t si; uint64_t pos; uint64_t inv; int rows; int cols; int cs; int ss; float scale;)

void main() {
	int total = a.rows * a.cols;
	for (int i = BID * 128 + int(gl_LocalInvocationIndex); i < total; i += GDIM * 128) {
		int r = i / a.cols, c = i - r * a.cols, p = I(a.pos).v[r];
		uint bits = floatBitsToUint(F(a.inv).v[c]);
		int e = int(bits >> 23 & 255);
		uint m = e == 0 ? bits & 0x7fffffu : bits & 0x7fffffu | 0x800000u;
		uint64_t t = uint64_t(uint(abs(p))) * m;
		// Words of t/2pi, lowest first.
		const uint C[3] = uint[](0x7f09d5f4u, 0x9391054au, 0x28be60dbu);
		uint P[6] = uint[](0, 0, 0, 0, 0, 0);
		uint T[2] = uint[](uint(t), uint(t >> 32));
		for (int j = 0; j < 2; j++) {
			uint64_t carry = 0;
			for (int k = 0; k < 3; k++) {
				carry += uint64_t(T[j]) * C[k] + P[j + k];
				P[j + k] = uint(carry);
				carry >>= 32;
			}
			P[j + 3] = uint(carry);
		}
		// The point is left of bit 96 + 23 - exponent.
		int top = clamp(96 + 150 - max(e, 1), 64, 191), word = top >> 5, bit = top & 31;
		uint w[3];
		for (int k = 0; k < 3; k++) w[k] = word - 2 + k < 6 ? P[word - 2 + k] : 0;
		uint hi = bit == 0 ? w[1] : w[1] >> bit | w[2] << (32 - bit);
		uint lo = bit == 0 ? w[0] : w[0] >> bit | w[1] << (32 - bit);
		uint64_t turn = uint64_t(hi) << 32 | lo;
		uint quarter = uint((turn + (uint64_t(1) << 61)) >> 62);
		precise float y = float(int64_t(turn - (uint64_t(quarter) << 62))) * (6.283185307179586 / 18446744073709551616.0);
		precise float z = y * y;
		precise float s = fma(z, fma(z, fma(z, 2.7557314e-6, -1.9841270e-4), 8.3333333e-3), -1.6666667e-1);
		precise float k = fma(z, fma(z, fma(z, 2.4801587e-5, -1.3888889e-3), 4.1666667e-2), -0.5);
		precise float sn = fma(y * z, s, y);
		precise float cn = fma(z, k, 1.0);
		if ((quarter & 1) != 0) {
			float u = sn;
			sn = cn;
			cn = -u;
		}
		if ((quarter & 2) != 0) {
			sn = -sn;
			cn = -cn;
		}
		if (p < 0 != ((bits >> 31) != 0)) sn = -sn;
		precise float u = cn * a.scale;
		precise float v = sn * a.scale;
		F(a.co + uint64_t(4) * (int64_t(r) * a.cs + c)).v[0] = u;
		F(a.si + uint64_t(4) * (int64_t(r) * a.ss + c)).v[0] = v;
	}
}
