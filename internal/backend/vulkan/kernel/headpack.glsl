// RMSNorm of each head's values (a power of two of them, from 16 to 256), times w and silu(gate), packed.
struct HeadPack {
	Act act;
	In x, gate;
	uint64_t w;
	int rows, cols, dim, late;
	float eps, mean;
};
void head_job(HeadPack p, int row, int kb, int at, int lane, uint tid, bool live) {
	float v[8], g[8];
	in8(v, p.x, row, at, p.cols);
	in8(g, p.gate, row, at, p.cols);
	precise float s = 0;
	[[unroll]] for (int i = 0; i < 8; i++) s = fma(v[i], v[i], s);
	for (uint step = p.dim >> 4; step > 0; step >>= 1) s = s + at_lane(s, tid, tid ^ step); // dim/8 lanes are a head
	float r = root(s, float(p.dim), p.eps);                                                  // as in norm.comp
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float y = v[i] * r * F(p.w).v[(at + i) & (p.dim - 1)] * silu(g[i]);
		v[i] = y;
	}
	pack_row(p.act, kb, row, v, lane, tid, live);
}
