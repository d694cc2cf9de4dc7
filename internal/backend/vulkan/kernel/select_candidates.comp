#version 460
#extension GL_GOOGLE_include_directive : require
// What a sampler needs of a row, as select.cu describes it. A workgroup has a row.
#define THREADS 256
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t dst; uint64_t keys; uint64_t groups; uint64_t sums; uint64_t x; uint64_t table; int cols; int parts;
	int stride; int pad;)
const int LEAST_CANDIDATES = 128, MOST_CANDIDATES = 256;
shared uint64_t found[MOST_CANDIDATES];
shared uint count[256];
shared uint above[256];
shared uint digits, wanted, number, odd;

void main() {
	uint tid = thread();
	int row = BID;
	U groups = U(a.groups + uint64_t(4) * (int64_t(row) * a.parts * 256));
	F x = F(a.x + uint64_t(4) * (int64_t(row) * a.stride));
	I dst = I(a.dst + uint64_t(4) * (int64_t(row) * (4 + 2 * MOST_CANDIDATES)));
	if (tid == 0) {
		digits = 0;
		wanted = LEAST_CANDIDATES;
		number = 0;
		odd = 0;
	}
	// The bound, digit by digit, from the upper eight bits down.
	for (int shift = 24; shift >= 0; shift -= 8) {
		count[tid] = 0;
		barrier();
		uint prefix = digits, want = wanted;
		for (int i = 0; i < a.parts; i++) {
			uint g = groups.v[i * 256 + int(tid)];
			if (g == NOT_FINITE) atomicAdd(odd, 1);
			if (shift == 24 || g >> (shift + 8) == prefix) atomicAdd(count[g >> shift & 255], 1);
		}
		barrier();
		// How many groups have this digit or a larger one.
		above[tid] = count[tid];
		for (uint step = 1; step < 256; step <<= 1) {
			barrier();
			uint o = tid + step < 256 ? above[tid + step] : 0;
			barrier();
			above[tid] += o;
		}
		uint before = above[tid] - count[tid];
		barrier();
		if (before < want && (want <= above[tid] || tid == 0)) {
			digits = prefix << 8 | tid;
			wanted = want - before;
		}
		barrier();
	}
	// Where there is room for all columns all of them are candidates. The key of a value is never 0.
	uint bound = a.cols <= MOST_CANDIDATES ? 1 : max(digits, 1);
	for (int part = 0; part < a.parts; part++) {
		if (groups.v[part * 256 + int(tid)] < bound) continue;
		for (int i = 0; i < EACH; i++) {
			int c = part_column(part, i, tid);
			if (c >= a.cols) break;
			uint64_t k = key_of(x.v[c], c);
			if (uint(k >> 32) < bound) continue;
			uint at = atomicAdd(number, 1);
			if (at < MOST_CANDIDATES) found[at] = k;
		}
	}
	barrier();
	int n = int(number);
	if (tid == 0) {
		uint64_t total = 0;
		if (a.sums != 0)
			for (int i = 0; i < a.parts; i++) total += L(a.sums + uint64_t(8) * (int64_t(row) * a.parts)).v[i];
		dst.v[0] = odd != 0 ? -1 : n;
		dst.v[1] = int(uint(total));
		dst.v[2] = int(uint(total >> 32));
		dst.v[3] = bound > 1 ? floatBitsToInt(key_value(uint64_t(bound) << 32)) : int(0xff800000u);
	}
	if (odd != 0 || n > MOST_CANDIDATES) return;
	int size = 2;
	while (size < n) size *= 2;
	for (int i = n + int(tid); i < size; i += 256) found[i] = 0;
	// Bitonic sort, the largest key first.
	for (int k = 2; k <= size; k *= 2)
		for (int j = k / 2; j > 0; j /= 2) {
			barrier();
			for (int i = int(tid); i < size; i += 256) {
				int o = i ^ j;
				if (o <= i) continue;
				uint64_t u = found[i], v = found[o];
				if ((u < v) == ((i & k) == 0)) {
					found[i] = v;
					found[o] = u;
				}
			}
		}
	barrier();
	for (int i = int(tid); i < n; i += 256) {
		dst.v[4 + i] = key_column(found[i]);
		dst.v[4 + MOST_CANDIDATES + i] = floatBitsToInt(key_value(found[i]));
	}
}
