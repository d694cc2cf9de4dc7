//go:build !amd64 || noasm

package floor

import "strobe/internal/backend/cpu/kernel"

func read(b []byte) { readGeneric(b) }

func dot(_ kernel.Level, turns int) { dotGeneric(turns) }

func perTurn(kernel.Level) int { return genericTurn }
