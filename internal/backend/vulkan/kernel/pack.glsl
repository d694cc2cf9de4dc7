// What runs between products: kernels that end in packed activations. 32 lanes have a row and 256 columns at a time;
// lane l has columns 8l to 8l+7 of them.
#define THREADS 128
#include "common.glsl"
#include "act.glsl"
layout(local_size_x = 128) in;
#include "packrow.glsl"

// Calls JOB(row, kb, at, lane, tid, live) for every row and 256 columns; the last ones are done by several.
#define JOBS(rows, kbs)                                                                     \
	uint tid = thread();                                                                    \
	int lane = int(tid & 31), total = (rows) * (kbs);                                       \
	for (int base = BID * 4; base < total; base += GDIM * 4) {                              \
		bool live = base + int(tid >> 5) < total;                                           \
		int job = min(base + int(tid >> 5), total - 1), row = job / (kbs), kb = job - row * (kbs); \
		job_of(row, kb, kb * 256 + lane * 8, lane, tid, live);                              \
	}
