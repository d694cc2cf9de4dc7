//go:build !linux && !darwin

package platform

func forget([]byte) {}

func populate([]byte) {}

func availableMemory() int { return 0 }

func anonymous(int) []byte { return nil }

func free([]byte) {}
