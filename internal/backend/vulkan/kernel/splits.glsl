// What attention leaves of a row whose splits several workgroups have, and adding them.
struct Seen {
	int lo, hi;
	int part;           // its first partial result, or -1: one workgroup has all its splits and writes the output
	int split0, splits;
	int path, base;
	int block;          // sparse: its block of queries
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer SeenRows { Seen v[]; };
#define NOTHING -1e30 // the maximum of nothing

// What the unnormalised output is multiplied with in the end.
float last_factor(uint64_t sinks, float m, float l, int head) {
	if (sinks == 0) return l > 0 ? 1.0 / l : 0.0;
	precise float s = F(sinks).v[head] * LOG2E;
	float n = max(m, s);
	precise float f = exp2(m - n);
	precise float d = fma(l, f, exp2(s - n));
	precise float y = f / d;
	return y;
}
// One more split: (m, l) takes in (sm, sl). Outputs become o*f + so*g.
void take_in(inout float m, inout float l, float sm, float sl, out float f, out float g) {
	float n = max(m, sm);
	precise float df = m - n;
	precise float dg = sm - n;
	f = exp2(df);
	g = exp2(dg);
	precise float t = sl * g;
	precise float z = fma(l, f, t);
	l = z;
	m = n;
}
float blend(float o, float f, float x, float g) {
	precise float t = x * g;
	precise float z = fma(o, f, t);
	return z;
}
