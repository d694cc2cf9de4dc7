// Activations as products want them: signed bytes with one scale for 256 columns.
//
// A row has, for every 256 columns, ROW bytes: the bytes of four pairs of sub-blocks (of 32 columns), then the sums
// of the bytes of 16 columns each, their lowest seven bits and then the rest, then the scale. In a pair, lane t (of four) has 16 bytes: its
// columns 8t to 8t+7 of the first sub-block, then of the second. Of four neighbouring columns the middle ones are
// swapped, as they are in the nibbles of tiles (see weights.glsl).
const int ROW = 304, SUMS = 256, SCALE_AT = 288;
struct Act {
	uint64_t p;
	int kb; // columns / 256
	int nt; // not used: all rows lie one after the other
};
