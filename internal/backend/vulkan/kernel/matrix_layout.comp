#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "common.glsl"
// Which results of a product of cooperative matrices the lanes have: eight each, 16 * row + column. Rows are made by
// multiplying, so that it is what products do, and not loads.
layout(local_size_x = 32) in;
ARGS(uint64_t to;)
shared uvec4 mem[64];

void main() {
	int lane = int(thread());
	icoopmatNV<8, gl_ScopeSubgroup, 16, 32> a0;
	icoopmatNV<8, gl_ScopeSubgroup, 32, 16> b0;
	icoopmatNV<32, gl_ScopeSubgroup, 16, 16> sum = icoopmatNV<32, gl_ScopeSubgroup, 16, 16>(0);
	[[unroll]] for (int k = 0; k < 2; k++) { // column 0 of the one and row 0 of the other
		barrier();
		mem[lane] = uvec4((lane & 1) != 0 ? 0 : k == 0 ? lane / 2 : 1, 0, 0, 0);
		mem[32 + lane] = uvec4((lane & 1) != 0 ? 0 : k == 0 ? 16 : lane / 2, 0, 0, 0);
		barrier();
		coopMatLoadNV(a0, mem, 0, 2, false);
		coopMatLoadNV(b0, mem, 32, 2, true);
		sum = coopMatMulAddNV(a0, b0, sum);
	}
	[[unroll]] for (int i = 0; i < 8; i++) I(a.to).v[lane * 8 + i] = sum[i];
}
