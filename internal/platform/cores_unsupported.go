//go:build !linux && !darwin

package platform

func fastCores() int { return 0 }
