// A value and its column as one number that is larger for the better choice: the larger value, then the lower column.
// 0 is for NaN, which is never chosen.
uint64_t key_of(float v, int c) {
	if (is_nan(v)) return 0;
	uint b = floatBitsToUint(v);
	if (b == 0x80000000u) b = 0; // -0 counts as 0
	b = (b & 0x80000000u) != 0 ? ~b : b | 0x80000000u;
	return uint64_t(b) << 32 | uint(~c);
}
int key_column(uint64_t k) { return k != 0 ? int(~uint(k)) : -1; }
float key_value(uint64_t k) {
	uint b = uint(k >> 32);
	return uintBitsToFloat((b & 0x80000000u) != 0 ? b & 0x7fffffffu : ~b);
}
#define LEAST uintBitsToFloat(0xff800000u)

// Columns are looked at in parts; column i of a thread in a part.
const int PART = 8192, EACH = PART / 256;
int part_column(int part, int i, uint tid) { return part * PART + i * 256 + int(tid); }
#define NOT_FINITE 0xffffffffu // the maximum of columns of which one is NaN or infinite

shared uint64_t key_mem[THREADS];
shared uint64_t key_best[THREADS / 32];
// The best of all threads.
uint64_t best_of(uint64_t k, uint tid) {
	barrier();
	key_mem[tid] = k;
	barrier();
	if (tid < THREADS / 32) {
		uint64_t b = 0;
		for (uint i = 0; i < 32; i++) b = max(b, key_mem[tid * 32 + i]);
		key_best[tid] = b;
	}
	barrier();
	uint64_t b = key_best[0];
	for (uint i = 1; i < THREADS / 32; i++) b = max(b, key_best[i]);
	return b;
}
