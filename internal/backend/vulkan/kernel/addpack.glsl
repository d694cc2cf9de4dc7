// dst = x + y, dst*w packed, and the sums of squares of 256 columns each. y, dst, w and the packed rows may be missing.
struct AddPack {
	Act act;
	In x, y;
	uint64_t dst, w, sumsq;
	int dst_stride, rows, cols, late;
};
vec2 add_job(AddPack p, int kb, int row, int at, uint tid) {
	vec2 w = vec2(1);
	if (p.w != 0) w = vec2(at < p.cols ? F(p.w).v[at] : 1, at + 1 < p.cols ? F(p.w).v[at + 1] : 1);
	precise vec2 v = in2(p.x, row, at, p.cols);
	if (p.y.p != 0) v = v + in2(p.y, row, at, p.cols);
	if (p.dst != 0) give2(p.dst + uint64_t(4) * (int64_t(row) * p.dst_stride), at, p.cols, v);
	float s = sum32(squares(v, tid), tid);
	if (tid == 0) FC(p.sumsq).v[row * p.act.kb + kb] = s;
	v = v * w;
	if (p.act.p != 0) pack_row(p.act, kb, row, v, tid);
	return v;
}
