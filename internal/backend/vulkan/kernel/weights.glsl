// Tiles of weights, as backend/gpu packs them (repack.go; formats.h of backend/cuda describes their bits): 16 rows x
// 256 columns in two halves of 128 columns. Lane 4g+t has the columns 8t to 8t+7 of every sub-block of 32, of the
// rows g and g+8.
const int Q4K = 0, Q5K = 1, Q6K = 2, Q2K = 3, Q3K = 4, Q8 = 5, Q8M = 6, N4 = 7, NV4 = 8;
int half_size(int format, int second) {
	switch (format) {
	case Q4K: return second != 0 ? 1280 : 1088;
	case Q5K: return second != 0 ? 1536 : 1344;
	case Q6K: return second != 0 ? 1696 : 1664;
	case Q2K: return 1344;
	case Q3K: return second != 0 ? 1184 : 1152;
	case Q8: return 2176;
	case Q8M: return second != 0 ? 2432 : 2176;
	}
	return 1280;
}
// Tables of nibbles, plus 128: code-8; IQ4; FP4 times two; code-1; 2*code-1.
uvec4 table_of(int k) {
	switch (k) {
	case 1: return uvec4(0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5);
	case 2: return uvec4(0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c);
	case 3: return uvec4(0x8281807f, 0x86858483, 0x8a898887, 0x8e8d8c8b);
	case 4: return uvec4(0x8583817f, 0x8d8b8987, 0x9593918f, 0x9d9b9997);
	}
	return uvec4(0x7b7a7978, 0x7f7e7d7c, 0x83828180, 0x87868584);
}
int entry(uvec4 t, uint q) {
	uint w = (q & 8) != 0 ? ((q & 4) != 0 ? t.w : t.z) : ((q & 4) != 0 ? t.y : t.x);
	return int(w >> (8 * (q & 3)) & 255) - 128;
}
