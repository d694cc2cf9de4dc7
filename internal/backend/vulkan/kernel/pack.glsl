// What runs between products: kernels that end in packed activations. 32 lanes have a row and 256 columns at a time;
// lane l has columns 8l to 8l+7 of them.
#define THREADS 128
#include "common.glsl"
#include "act.glsl"
layout(local_size_x = 128) in;

shared int pack_mem[THREADS];
// Packs 256 values of a row. A row with a value that is no finite number becomes NaN.
void pack_row(Act o, int kb, int row, float v[8], int lane, uint tid, bool live) {
	uint m = 0;
	[[unroll]] for (int i = 0; i < 8; i++) m = max(m, floatBitsToUint(v[i]) & 0x7fffffffu);
	float most = max32(uintBitsToFloat(min(m, 0x7f800000u)), tid);
	bool sound = most < uintBitsToFloat(0x7f800000u), some = sound && most > 1e-36; // less has no reciprocal
	precise float inv = some ? 127.0 / most : 0.0;
	precise float scale = some ? most / 127.0 : 0.0;
	int q[8], s = 0;
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float x = v[i] * inv;
		q[i] = some ? clamp(int(roundEven(x)), -127, 127) : 0;
		s += q[i];
	}
	barrier();
	pack_mem[tid] = s;
	barrier();
	if (!live) return; // nothing below waits
	uint64_t at = o.p + (uint64_t(row) * o.kb + kb) * ROW;
	int sb = lane >> 2, t = lane & 3;
	uint lo = q[0] & 255 | (q[2] & 255) << 8 | (q[1] & 255) << 16 | (q[3] & 255) << 24;
	uint hi = q[4] & 255 | (q[6] & 255) << 8 | (q[5] & 255) << 16 | (q[7] & 255) << 24;
	U2(at + (sb >> 1) * 64 + t * 16 + (sb & 1) * 8).v[0] = uvec2(lo, hi);
	if ((lane & 7) == 0) {
		uint low = 0, high = 0;
		[[unroll]] for (int i = 0; i < 4; i++) {
			int sum = pack_mem[tid + 2 * i] + pack_mem[tid + 2 * i + 1];
			low |= (sum & 127) << (8 * i);
			high |= (sum >> 7 & 255) << (8 * i);
		}
		U(at + SUMS + (lane >> 3) * 4).v[0] = low;
		U(at + SUMS + 16 + (lane >> 3) * 4).v[0] = high;
	}
	if (lane == 0) F(at + SCALE_AT).v[0] = sound ? scale : uintBitsToFloat(0x7fc00000u);
}
// act(v) * up
void gate8(inout float v[8], float up[8], bool is_gelu) {
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float y = (is_gelu ? gelu(v[i]) : silu(v[i])) * up[i];
		v[i] = y;
	}
}
void give8(uint64_t p, int c, int cols, float v[8]) {
	[[unroll]] for (int i = 0; i < 8; i++)
		if (c + i < cols) F(p).v[c + i] = v[i];
}

// Calls JOB(row, kb, at, lane, tid, live) for every row and 256 columns; the last ones are done by several.
#define JOBS(rows, kbs)                                                                     \
	uint tid = thread();                                                                    \
	int lane = int(tid & 31), total = (rows) * (kbs);                                       \
	for (int base = BID * 4; base < total; base += GDIM * 4) {                              \
		bool live = base + int(tid >> 5) < total;                                           \
		int job = min(base + int(tid >> 5), total - 1), row = job / (kbs), kb = job - row * (kbs); \
		job_of(row, kb, kb * 256 + lane * 8, lane, tid, live);                              \
	}
