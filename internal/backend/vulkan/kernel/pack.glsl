// What runs between products: kernels that end in packed activations. 128 threads, which most workgroups have, have 256
// columns of a row, thread t the columns 2t and 2t+1. These kernels take as long as their instructions need to arrive, each of which runs once: what is
// short is fast.
#ifndef THREADS
#define THREADS 128
#endif
#include "common.glsl"
#include "act.glsl"
layout(local_size_x = THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 8) buffer V2 { vec2 v[]; };
shared vec4 val_mem[64];
shared uvec2 code_mem[THREADS / 2];
shared ivec4 sums_mem[THREADS / 4];
shared float most_mem[THREADS / 32];

// Two values from the even column c on, those beyond cols being 0.
vec2 in2(In s, int tok, int c, int cols) {
	uint64_t p = in_addr(s, tok, c), step = 4 * in_step(s);
	int pieces = in_pieces(s, min(c, cols - 1));
	precise vec2 x = vec2(0);
	if (((p | step) & 7) != 0 || c + 2 > cols || s.groups > 0 && (s.first & 1) != 0) { // seldom
		[[dont_unroll]] for (int i = 0; i < min(2, cols - c); i++) {
			pieces = in_pieces(s, c + i);
			precise float y = F(p).v[i];
			[[dont_unroll]] for (int k = 1; k < pieces; k++) y = y + F(p + k * step).v[i];
			if (i == 0) x.x = y;
			else x.y = y;
		}
		return x;
	}
	x = V2(p).v[0];
	for (int k = 1; k < pieces; k += 5) { // several are asked for at once, and added in order
		vec2 w[5];
		[[unroll]] for (int i = 0; i < 5; i++) w[i] = V2(p + min(k + i, pieces - 1) * step).v[0];
		[[unroll]] for (int i = 0; i < 5; i++)
			if (k + i < pieces) x = x + w[i];
	}
	return x;
}
void give2(uint64_t p, int c, int cols, vec2 v) {
	p += uint64_t(4) * c;
	if ((p & 7) == 0 && c + 2 <= cols) V2(p).v[0] = v;
	else {
		if (c < cols) F(p).v[0] = v.x;
		if (c + 1 < cols) F(p).v[1] = v.y;
	}
}
// The sum of squares of the eight columns from 8 * (tid % 32) on. All threads have stored their values.
float squares(vec2 v, uint tid) {
	uint at = tid >> 1;
	barrier();
	if ((tid & 1) == 0) val_mem[at].xy = v;
	else val_mem[at].zw = v;
	barrier();
	precise float s = 0;
	[[unroll]] for (int i = 0; i < 8; i++) s = fma(val_mem[2 * (tid & 31) + i / 4][i & 3], val_mem[2 * (tid & 31) + i / 4][i & 3], s);
	return s;
}
// Packs 256 values of a row, if it is there. A row with a value that is no finite number becomes NaN.
void pack_row(Act o, int kb, int row, vec2 v, uint tid, bool there) {
	uint first = THREADS == 128 ? 0 : tid & ~127u; // of the threads that have the row
	uvec2 u = floatBitsToUint(v) & 0x7fffffffu;
	float most = max32(uintBitsToFloat(min(max(u.x, u.y), 0x7f800000u)), tid);
	if ((tid & 31) == 0) most_mem[tid >> 5] = most;
	barrier();
	uint m = first >> 5;
	most = max(max(most_mem[m], most_mem[m + 1]), max(most_mem[m + 2], most_mem[m + 3]));
	bool sound = most < uintBitsToFloat(0x7f800000u), some = sound && most > 1e-36; // less has no reciprocal
	precise float inv = some ? 127.0 / most : 0.0;
	precise float scale = some ? most / 127.0 : 0.0;
	precise vec2 x = v * inv;
	ivec2 q = some ? clamp(ivec2(roundEven(x)), -127, 127) : ivec2(0);
	code_mem[tid >> 1][tid & 1] = uint(q.x & 255 | (q.y & 255) << 16);
	sums_mem[tid >> 2][tid & 3] = q.x + q.y;
	barrier();
	if (!there) return;
	uint64_t at = o.p + (uint64_t(row) * o.kb + kb) * ROW;
	uint nth = tid - first;
	if (nth < 64) { // four columns, of which the middle ones are swapped
		uint sb = nth >> 3;
		uvec2 c = code_mem[(first >> 1) + nth];
		U(at + (sb >> 1) * 64 + (nth >> 1 & 3) * 16 + (sb & 1) * 8 + (nth & 1) * 4).v[0] = c.x | c.y << 8;
	} else if (nth < 68) {
		uint low = 0, high = 0, t = nth - 64;
		for (int i = 0; i < 4; i++) {
			uint k = (first >> 2) + 8 * t + 2 * i;
			ivec4 two = sums_mem[k] + sums_mem[k + 1];
			int sum = two.x + two.y + two.z + two.w;
			low |= uint(sum & 127) << (8 * i);
			high |= uint(sum >> 7 & 255) << (8 * i);
		}
		U(at + SUMS + t * 4).v[0] = low;
		U(at + SUMS + 16 + t * 4).v[0] = high;
	} else if (nth == 68) F(at + SCALE_AT).v[0] = sound ? scale : uintBitsToFloat(0x7fc00000u);
}
void pack_row(Act o, int kb, int row, vec2 v, uint tid) { pack_row(o, kb, row, v, tid, true); }
// act(v) * up
vec2 gated(vec2 v, vec2 up, bool is_gelu) {
	precise vec2 y;
	y.x = (is_gelu ? gelu(v.x) : silu(v.x)) * up.x;
	y.y = (is_gelu ? gelu(v.y) : silu(v.y)) * up.y;
	return y;
}
// Calls job_of(row, kb, at, tid) for every row and 256 columns.
#define JOBS(rows, kbs)                                                          \
	uint tid = thread();                                                         \
	for (int job = BID; job < (rows) * (kbs); job += GDIM) {                     \
		int row = job / (kbs), kb = job - row * (kbs);                           \
		job_of(row, kb, kb * 256 + 2 * int(tid), tid);                           \
	}
