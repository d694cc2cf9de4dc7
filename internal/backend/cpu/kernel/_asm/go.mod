module arm64asm

go 1.26.0
