package gpu

// pattern is operations that become fewer launches together than one by one, with the same bits.
type pattern struct {
	first opKind                       // of its operations
	fuse  func(l *lowering, i int) int // launches those at i and says how many they were; 0: the pattern is not there
}

// fusion is a pattern that match finds and build launches.
func fusion[M any](first opKind, match func(*lowering, int) (M, bool), build func(*lowering, int, M) int) pattern {
	return pattern{first, func(l *lowering, i int) int {
		if m, ok := match(l, i); ok {
			return build(l, i, m)
		}
		return 0
	}}
}

// patterns are tried in this order.
var patterns = []pattern{
	fusion(opMatMul, (*lowering).matchMixture, (*lowering).mixture),
	fusion(opMatMul, (*lowering).matchHalves, (*lowering).halfProducts),
	fusion(opExpertSum, (*lowering).matchPost, (*lowering).post),
	fusion(opExpertSum, (*lowering).matchExpertSum, (*lowering).expertSum),
	fusion(opAdd, (*lowering).matchAddNorm, (*lowering).addNorm),
	fusion(opAdd, (*lowering).matchAddPicked, (*lowering).addNorm),
	fusion(opRMSNorm, (*lowering).matchQKV, (*lowering).qkv),
	fusion(opRMSNorm, (*lowering).matchHeadGate, (*lowering).headGate),
	fusion(opRMSNorm, (*lowering).matchPost, (*lowering).post),
	fusion(opRMSNorm, (*lowering).matchLateNorm, (*lowering).putOff),
	fusion(opRMSNorm, (*lowering).matchRouterNorm, (*lowering).routerNorm),
	fusion(opRMSNorm, (*lowering).matchNorm, (*lowering).norm),
	fusion(opGated, (*lowering).matchGated, (*lowering).gated),
	fusion(opSigmoidGate, (*lowering).matchSigmoidGate, (*lowering).sigmoidGate),
}

// fused launches operations that begin a pattern at i and returns how many they were.
func (l *lowering) fused(i int) int {
	for _, p := range patterns {
		if p.first == l.ops[i].kind {
			if n := p.fuse(l, i); n > 0 {
				return n
			}
		}
	}
	return 0
}
