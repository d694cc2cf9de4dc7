// Attention over the pages of the cache, as attention.h of backend/cuda describes it: splits of a row depend on what
// that row sees alone, and whether one workgroup has all of them or each has its own (and merge adds) changes no bit.
#include "kv.glsl"
#include "splits.glsl"
struct Item {
	int row, rows;   // of the batch
	int table;       // where the sequence's pages begin
	int p0, p1;      // pages
	int per;         // pages of a split, counted from page 0
	int fresh;
	int base;        // tree: from this slot on every path has its own keys and values; otherwise the largest int
	int path, paths;
	int lo, hi;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Items { Item v[]; };
ARGS(uint64_t q; uint64_t to; uint64_t items; uint64_t seen; uint64_t pages; uint64_t paths; uint64_t part;
	uint64_t ml; uint64_t sinks;
	int qstride; int ostride; KvPlace at; int kvheads; int group; int chunk; int chunks; int share; int shares; float scale;
	uint64_t kept; int words; int block;) // sparse, if kept is not 0: tokens of a block

// The bits of the blocks of keys that a head of a row's block of queries sees.
uint64_t kept_of(Seen r, int head) {
	return a.kept + uint64_t(8) * a.words * (int64_t(r.block) * (a.kvheads * a.group) + head);
}
// The first page from p on that has a slot of such a block, or p1.
int next_page(uint64_t kept, int p, int p1) {
	if (a.kept == 0) return p;
	for (int n = p * 64 / a.block; n * a.block < p1 * 64; n = (n | 31) + 1) {
		uint rest = U(kept).v[n >> 5] >> (n & 31);
		if (rest != 0) return min(max(p, (n + findLSB(rest)) * a.block >> 6), p1);
	}
	return p1;
}
bool sees_slot(uint64_t kept, int s) {
	if (a.kept == 0) return true;
	int n = s / a.block;
	return (U(kept).v[n >> 5] >> (n & 31) & 1) != 0;
}

// Where the slot that a path sees as s lies. One that nobody sees is any slot of the same page.
int lies_at(int path, int base, int s) {
	int i = s - base;
	if (path < 0 || i < 0 || i >= PATH) return s;
	int at = I(a.paths).v[path * PATH + i];
	return at < 0 ? s : at;
}
