package model_test

import (
	"slices"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/testkit"
	"strobe/internal/testkit/modeltest"
)

// TestRollback: parts of passes that are not accepted leave no trace, whatever the architecture.
func TestRollback(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	modeltest.Suite{Backend: testkit.NewDevice(t, b)}.Rollback(t, slices.Concat(modeltest.Targets, modeltest.Plain)...)
}
