// What every kernel shares: how its parameter is reached, reading activations, functions of one value, sums.
//
// A kernel has one parameter, the structure that backend/gpu fills in, in device memory; its address is the push
// constant (or the structure itself, if it is short and read by a kernel that runs often). Kernels have the names and do the work of those in backend/cuda/kernel, whose comments describe tables
// and layouts; where a kernel differs it says so. Everything is addresses (no descriptors) and 32-bit words; 16-bit
// access is used to store halves alone.
//
// Bits must not depend on the size of subgroups, on the batch or on the variant of a kernel: sums are written out,
// products and sums are `precise`, and what the lanes of a row exchange is added in one order.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(buffer_reference, std430, buffer_reference_align = 4) buffer F { float v[]; };
// read by other threads of a workgroup
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer FC { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer U { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer I { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer H { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer L { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer U2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer U4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer V4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer V4C { vec4 v[]; };

// The parameter of a kernel, as `a`. PUSHED: it is pushed itself, at most 128 bytes; the driver has a list of such kernels.
#ifdef PUSHED
#define ARGS(fields) layout(push_constant, std430) uniform Push { fields } a;
#else
#define ARGS(fields) \
	layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Args { fields }; \
	layout(push_constant, std430) uniform Push { Args a; };
#endif

// How lanes exchange values: 0 through shared memory, 1 by shuffles where the subgroup is large enough.
layout(constant_id = 0) const uint REDUCE = 0;

#define BID int(gl_WorkGroupID.x)
#define BIDY int(gl_WorkGroupID.y)
#define BIDZ int(gl_WorkGroupID.z)
#define GDIM int(gl_NumWorkGroups.x)
#define GDIMY int(gl_NumWorkGroups.y)

// The number of this invocation. With shuffles it must come from the subgroup: nothing says that
// gl_LocalInvocationIndex runs through subgroups in order.
uint thread() {
	return REDUCE == 0 ? gl_LocalInvocationIndex : gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
}

bool is_nan(float v) { return (floatBitsToUint(v) & 0x7fffffffu) > 0x7f800000u; }
float half_at(uint64_t p) {
	uint w = U(p & ~uint64_t(3)).v[0];
	return unpackHalf2x16(w >> (uint(p & 2) * 8)).x;
}
uint byte_at(uint64_t p) { return U(p & ~uint64_t(3)).v[0] >> (uint(p & 3) * 8) & 255; }

// ---- a product's results: pieces p[piece][token][row] of groups of 256 rows with kb stages each, cut over `grid`
// blocks.
struct In {
	uint64_t p;
	int stride;              // plain rows: values from one to the next
	int groups, kb, grid, n; // pieces, if groups > 0: how the matrix is cut, and the tokens of the product
	int first;               // pieces: the row of the product that is column 0
};
int block_of(int t, int T, int G) { return int((uint(t + 1) * uint(G) - 1u) / uint(T)); }
int first_stage(int b, int T, int G) { return int(uint(b) * uint(T) / uint(G)); }
int in_pieces(In s, int c) {
	if (s.groups == 0) return 1;
	int T = s.groups * s.kb, first = ((s.first + c) >> 8) * s.kb;
	return block_of(first + s.kb - 1, T, s.grid) - block_of(first, T, s.grid) + 1;
}
uint64_t in_addr(In s, int tok, int c) {
	int stride = s.groups == 0 ? s.stride : s.groups * 256, first = s.groups == 0 ? 0 : s.first;
	return s.p + uint64_t(4) * (int64_t(tok) * stride + first + c);
}
uint64_t in_step(In s) { return uint64_t(s.n) * (s.groups * 256); }
// Several pieces are asked for at once, and added in order.
float in_sum(In s, int tok, int c, int pieces) {
	uint64_t p = in_addr(s, tok, c);
	precise float v = F(p).v[0];
	uint64_t step = 4 * in_step(s);
	for (int k = 1; k < pieces; k += 5) {
		float w[5];
		[[unroll]] for (int i = 0; i < 5; i++) w[i] = F(p + min(k + i, pieces - 1) * step).v[0];
		[[unroll]] for (int i = 0; i < 5; i++)
			if (k + i < pieces) v = v + w[i];
	}
	return v;
}
float in1(In s, int tok, int c) { return in_sum(s, tok, c, in_pieces(s, c)); }
// Eight values from column c on, those beyond cols being 0. They lie in one group if c is a multiple of eight and so
// is s.first.
void in8(out float v[8], In s, int tok, int c, int cols) {
	bool one = s.groups == 0 || (s.first & 7) == 0;
	int pieces = one ? in_pieces(s, min(c, cols - 1)) : 1;
	uint64_t p = in_addr(s, tok, c), step = 4 * in_step(s);
	if (one && c + 8 <= cols && (p & 15) == 0 && (step & 15) == 0) {
		precise vec4 x = V4(p).v[0], y = V4(p).v[1];
		for (int k = 1; k < pieces; k += 5) {
			vec4 w[5], z[5];
			[[unroll]] for (int i = 0; i < 5; i++) {
				V4 q = V4(p + min(k + i, pieces - 1) * step);
				w[i] = q.v[0];
				z[i] = q.v[1];
			}
			[[unroll]] for (int i = 0; i < 5; i++)
				if (k + i < pieces) {
					x = x + w[i];
					y = y + z[i];
				}
		}
		[[unroll]] for (int i = 0; i < 4; i++) {
			v[i] = x[i];
			v[4 + i] = y[i];
		}
		return;
	}
	[[unroll]] for (int i = 0; i < 8; i++) { // seldom: short, so that kernels compile quickly
		precise float sum = 0;
		if (c + i < cols) {
			if (!one) pieces = in_pieces(s, c + i);
			sum = F(p + 4 * i).v[0];
			for (int k = 1; k < pieces; k++) sum = sum + F(p + 4 * i + k * step).v[0];
		}
		v[i] = sum;
	}
}

// ---- functions of one value
#define LOG2E 1.44269504
#define LN2 0.69314718
float exp_(float x) { precise float y = x * LOG2E; return exp2(y); }
float sigmoid(float x) {
	precise float y = x * -LOG2E;
	precise float d = 1.0 + exp2(y);
	precise float r = 1.0 / d;
	return r;
}
float silu(float x) { precise float y = x * sigmoid(x); return y; }
float tanh_(float x) {
	precise float z = x * x;
	if (z < 0.25) {
		precise float n = fma(z, z + 105.0, 945.0);
		precise float d = fma(z, fma(z, 15.0, 420.0), 945.0);
		precise float y = x * (n / d);
		return y;
	}
	precise float u = abs(x) * (-2.0 * LOG2E);
	float e = exp2(u);
	precise float t = (1.0 - e) / (1.0 + e);
	return x < 0 ? -t : t;
}
float gelu(float x) {
	precise float c = 0.044715 * x * x;
	precise float u = 0.7978845608 * fma(c, x, x);
	precise float y = x * sigmoid(u + u);
	return y;
}
float gelu_erf(float x) { // see cuda/kernel/common.h
	precise float z = abs(x) * 0.70710678;
	precise float t = 1.0 / fma(z, 0.5, 1.0);
	precise float p = fma(t, 0.17087277, -0.82215223);
	p = fma(t, fma(t, p, 1.48851587), -1.13520398);
	p = fma(t, fma(t, p, 0.27886807), -0.18628806);
	p = fma(t, fma(t, p, 0.09678418), 0.37409196);
	p = fma(t, fma(t, p, 1.00002368), -1.26551223);
	precise float y = 0.5 * t * exp_(fma(z, -z, p)) * x;
	precise float rest = x - y;
	return x < 0 ? y : rest;
}
float quick_gelu(float x) { precise float u = x * 1.702; precise float y = x * sigmoid(u); return y; }
float root(float s, float n, float eps) { precise float y = 1.0 / sqrt(s / n + eps); return y; }

// ---- 32 lanes. The includer defines THREADS. All threads of a workgroup call these together.
#ifdef THREADS
shared float lane_mem[THREADS];

float at_lane(float v, uint tid, uint other) { // the value of another thread
	barrier();
	lane_mem[tid] = v;
	barrier();
	return lane_mem[other];
}
#define LANES(name, expr)                                                            \
	float name(float v, uint tid) {                                                  \
		precise float x = v;                                                         \
		if (REDUCE == 0) {                                                           \
			barrier();                                                               \
			lane_mem[tid] = x;                                                       \
			barrier();                                                               \
			uint base = tid & ~31u;                                                  \
			float part[16];                                                          \
			[[unroll]] for (uint i = 0; i < 16; i++) {                               \
				precise float p = lane_mem[base + i], q = lane_mem[base + i + 16];   \
				precise float r = expr;                                              \
				part[i] = r;                                                         \
			}                                                                        \
			[[unroll]] for (uint step = 8; step > 0; step >>= 1)                     \
				[[unroll]] for (uint i = 0; i < step; i++) {                         \
					precise float p = part[i], q = part[i + step];                   \
					precise float r = expr;                                          \
					part[i] = r;                                                     \
				}                                                                    \
			return part[0];                                                          \
		}                                                                            \
		[[unroll]] for (uint step = 16; step > 0; step >>= 1) {                      \
			precise float p = x, q;                                                  \
			if (step < gl_SubgroupSize) q = subgroupShuffleXor(x, step);             \
			else q = at_lane(x, tid, tid ^ step);                                    \
			x = expr;                                                                \
		}                                                                            \
		return x;                                                                    \
	}
LANES(sum32, p + q)
LANES(max32, max(p, q))

// Over the four lanes 4i to 4i+3.
#define QUADS(name, expr)                                                            \
	float name(float v, uint tid) {                                                  \
		precise float x = v;                                                         \
		if (REDUCE == 0) {                                                           \
			barrier();                                                               \
			lane_mem[tid] = x;                                                       \
			barrier();                                                               \
			uint base = tid & ~3u;                                                   \
			precise float p = lane_mem[base], q = lane_mem[base + 1];                \
			precise float one = expr;                                                \
			p = lane_mem[base + 2];                                                  \
			q = lane_mem[base + 3];                                                  \
			precise float two = expr;                                                \
			p = one;                                                                 \
			q = two;                                                                 \
			precise float r = expr;                                                  \
			return r;                                                                \
		}                                                                            \
		[[unroll]] for (uint step = 1; step < 4; step <<= 1) {                       \
			precise float p = x, q = subgroupShuffleXor(x, step);                    \
			x = expr;                                                                \
		}                                                                            \
		return x;                                                                    \
	}
QUADS(sum4, p + q)
QUADS(max4, max(p, q))
#endif
