package vec

//go:generate go -C _asm run . -out ../vec_amd64.s -stubs ../stubs_amd64.go -pkg vec
