// Work that the last of several workgroups does for all of them: what they have stored is seen by it. The kernel defines
// OTHERS.
shared bool is_last;
// All threads of a workgroup call this when their part is stored. The counter is zero before and afterwards.
bool comes_last(uint64_t counter, uint workgroups, uint tid) {
	memoryBarrierBuffer();
	barrier();
	if (tid == 0) {
		U c = U(counter);
		is_last = atomicAdd(c.v[0], 1) + 1 == workgroups;
		if (is_last) c.v[0] = 0;
	}
	barrier();
	memoryBarrierBuffer();
	return is_last;
}
