// The sum of the splits of a row, for as many values of a head as VEC has, which VECS reads.
VEC merged(Seen r, uint64_t part, uint64_t ml, uint64_t sinks, int heads, int head, int dim, int d) {
	float m = NOTHING, l = 0;
	VEC o = VEC(0);
	const int AHEAD = 8; // splits that are asked for at once
	for (int s0 = 0; s0 < r.splits; s0 += AHEAD) {
		vec2 at[AHEAD];
		VEC x[AHEAD];
		[[unroll]] for (int k = 0; k < AHEAD; k++) {
			int64_t from = int64_t(r.part + min(s0 + k, r.splits - 1)) * heads + head;
			at[k] = uintBitsToFloat(U2(ml + uint64_t(8) * from).v[0]);
			x[k] = VECS(part + uint64_t(4) * (from * dim + d)).v[0];
		}
		[[unroll]] for (int k = 0; k < AHEAD; k++) {
			if (s0 + k >= r.splits) break;
			if (s0 + k == 0) {
				m = at[k].x;
				l = at[k].y;
				o = x[k];
				continue;
			}
			float f, g;
			take_in(m, l, at[k].x, at[k].y, f, g);
			precise VEC t = x[k] * g, z = fma(o, VEC(f), t);
			o = z;
		}
	}
	precise VEC y = o * last_factor(sinks, m, l, head);
	return y;
}
