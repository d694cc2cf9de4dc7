// Gated DeltaNet: the tables of a step and the memory of a sequence, as delta.h of backend/cuda describes them.
struct DeltaShape {
	int kheads, vheads, kdim, vdim, taps, grouped;
	int values;   // floats of a layer's state and inputs
	int tape_row; // floats of a row of a tape
};
int channels(DeltaShape d) { return 2 * d.kheads * d.kdim + d.vheads * d.vdim; }
int decays(DeltaShape d) { return channels(d) + d.kheads * d.kdim + d.vheads * d.vdim; } // in a row of a tape
const int SEG = 24, SEG_ROW = 0, SEG_N = 1, SEG_PENDING = 2, SEG_FLAGS = 3, SEG_STATE = 4, SEG_READ = 6, SEG_WRITE = 8,
	SEG_READ_ROWS = 10,
	SEG_WRITE_ROWS = 11, SEG_ORDER = 12, SEG_ENTRIES = 13, SEG_PATH = 14, SEG_SHIFT = 16;
const int FLAG_PROMPT = 1, FLAG_SHIFT = 2, ENTRY_RESTART = 1 << 30, ENTRY_QUIET = 1 << 29, ENTRY_ROW = 0xffffff;

I row_of(uint64_t table, int row, int taps) { return I(table + 4 * (4 + row * (taps + 1))); }
I seg_of(uint64_t table, int rows, int taps, int seg) { return I(table + 4 * (4 + rows * (taps + 1) + seg * SEG)); }
uint64_t seg_addr(I s, int at) { return packUint2x32(uvec2(s.v[at], s.v[at + 1])); }
uint64_t seg_state(I s, DeltaShape d, int layer) { return seg_addr(s,
	SEG_STATE) + uint64_t(4) * (int64_t(layer) * d.values); }
uint64_t seg_inputs(I s, DeltaShape d, int layer) { return seg_state(s, d,
	layer) + uint64_t(4) * (d.vheads * d.vdim * d.kdim); }
uint64_t seg_read(I s, DeltaShape d, int layer, int row) {
	return seg_addr(s, SEG_READ) + uint64_t(4) * ((int64_t(layer) * s.v[SEG_READ_ROWS] + row) * d.tape_row);
}
uint64_t seg_write(I s, DeltaShape d, int layer, int row) {
	return seg_addr(s, SEG_WRITE) + uint64_t(4) * ((int64_t(layer) * s.v[SEG_WRITE_ROWS] + row) * d.tape_row);
}
// A source is a row of the batch (0), of the newest inputs (1) or of the tape (2), in the two lowest bits.
uint64_t source_at(int code, In u, I s, DeltaShape d, int layer) {
	if ((code & 3) == 0) return in_addr(u, code >> 2, 0); // its first piece
	if ((code & 3) == 1) return seg_inputs(s, d, layer) + uint64_t(4) * ((code >> 2) * channels(d));
	return seg_read(s, d, layer, code >> 2);
}
float source1(int code, In u, I s, DeltaShape d, int layer, int c) {
	if ((code & 3) == 0) return in1(u, code >> 2, c);
	return F(source_at(code, u, s, d, layer)).v[c];
}
// The newest inputs of the convolution move up; `all` threads share the channels of a segment.
void shift(I s, In u, DeltaShape d, int layer, int first, int all) {
	int n = d.taps - 1, chans = channels(d);
	F to = F(seg_inputs(s, d, layer));
	for (int c = first; c < chans; c += all) {
		float x[7];
		[[unroll]] for (int j = 0; j < 7; j++)
			if (j < n) x[j] = source1(s.v[SEG_SHIFT + j], u, s, d, layer, c);
		[[unroll]] for (int j = 0; j < 7; j++)
			if (j < n) to.v[j * chans + c] = x[j];
	}
}
// The decay and beta of one head of a row.
vec2 gates_of(In alpha, In beta, uint64_t decay, uint64_t dt, int row, int h) {
	precise float al = in1(alpha, row, h) + F(dt).v[h];
	float e = exp_(al);
	precise float one = 1.0 + e;
	precise float sp = al > 20.0 ? al : log2(one) * LN2; // log(1+e^x)
	if (e < 0.0625) // 1+e^x would lose the digits of e^x
		sp = e * fma(-e, fma(-e, fma(-e, fma(-e, 0.2, 0.25), 1.0 / 3.0), 0.5), 1.0);
	precise float x = F(decay).v[h] * sp;
	return vec2(exp_(x), sigmoid(in1(beta, row, h)));
}
// The factor of a head of queries or keys, from its sum of squares.
float head_scale(float squares, bool query, int dim, float eps) {
	precise float f = 1.0 / sqrt(squares + eps);
	if (query) f = f * (1.0 / sqrt(float(dim)));
	return f;
}
