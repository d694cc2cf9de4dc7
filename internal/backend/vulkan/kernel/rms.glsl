// What a token's results are multiplied with: the reciprocal root mean square, from sums of squares of 256 columns
// each. 32 lanes.
float rms_factor(uint64_t sumsq, int kb, float mean, float eps, uint tid) {
	precise float s = 0;
	for (int k = int(tid & 31); k < kb; k += 32) s = s + FC(sumsq).v[k];
	s = sum32(s, tid);
	precise float f = 1.0 / sqrt(s * mean + eps);
	return f;
}
