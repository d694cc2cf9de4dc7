# Marks every product, sum and difference of floats in disassembled SPIR-V as one that keeps its own rounding.
{ line[NR] = $0 }
/^ *Op(Member)?Decorate / { last = NR }
/ NoContraction$/ { done[$2] = 1 }
$3 ~ /^(OpF(Mul|Add|Sub)|OpVectorTimesScalar)$/ { found[++n] = $1 }
END {
	for (i = 1; i <= NR; i++) {
		print line[i]
		if (i == last)
			for (j = 1; j <= n; j++)
				if (!(found[j] in done)) print "OpDecorate " found[j] " NoContraction"
	}
}
