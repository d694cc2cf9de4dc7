//go:build !noasm && !windows

package kernel

func asksI8MM() bool { return false }
