// Which blocks of keys a prompt attends to (backend.Sparse), as sparse.cu of backend/cuda chooses them: a block of
// queries gives each block of keys a weight by the keys' mean, and those that get enough of it are kept, for every
// query head by itself.
#include "kv.glsl"
struct Span {
	int table;            // where the sequence's pages begin
	int first, pages, before;
	int slots;
	int means;            // its first block of keys
	int pad[2];
};
// Rows of a step that are (a part of) a block of queries.
struct Queries {
	int row, rows;
	int first; // position of the first
	int n;     // which block of its sequence
	int all;   // blocks of the prompt
	int means; // its sequence's first block of keys
	int pad[2];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Spans { Span v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer QueryBlocks { Queries v[]; };
// q is rotated if the keys are. count: after the number of pages those of blocks of keys and of queries. means: [block
// of keys][KV heads][kdim]; weights: [block of queries][heads][words x 64][2]: largest exponent, and the sum relative
// to it; kept: [block of queries][heads][words]. scale: times log2(e).
ARGS(uint64_t q; uint64_t count; uint64_t spans; uint64_t queries; uint64_t pages;
	uint64_t means; uint64_t weights; uint64_t kept;
	KvPlace at; int qstride; int kvheads; int group; int words; int block; int sink; int window; int last;
	float alpha; float scale;)
#define NOTHING -1e30 // the largest exponent of nothing
