// dst = x + y, dst*w packed, and the sums of squares of 256 columns each. y, dst, w and the packed rows may be missing.
struct AddPack {
	Act act;
	In x, y;
	uint64_t dst, w, sumsq;
	int dst_stride, rows, cols, late;
};
void add_job(AddPack p, out float v[8], int kb, int row, int at, int lane, uint tid, bool live) {
	in8(v, p.x, row, at, p.cols);
	if (p.y.p != 0) {
		float r[8];
		in8(r, p.y, row, at, p.cols);
		[[unroll]] for (int i = 0; i < 8; i++) {
			precise float z = v[i] + r[i];
			v[i] = z;
		}
	}
	if (p.dst != 0 && live) give8(p.dst + uint64_t(4) * (int64_t(row) * p.dst_stride), at, p.cols, v);
	precise float s = 0;
	[[unroll]] for (int i = 0; i < 8; i++) s = fma(v[i], v[i], s);
	s = sum32(s, tid);
	if (lane == 0 && live) FC(p.sumsq).v[row * p.act.kb + kb] = s;
	if (p.w != 0)
		[[unroll]] for (int i = 0; i < 8; i++)
			if (at + i < p.cols) {
				precise float z = v[i] * F(p.w).v[at + i];
				v[i] = z;
			}
	if (p.act.p != 0) pack_row(p.act, kb, row, v, lane, tid, live);
}
