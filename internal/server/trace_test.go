package server

import (
	"net/http/httptest"
	"testing"

	"strobe/internal/engine"
)

// TestTracingOffCostsNothing: without a collector a request allocates nothing for traces and the engine tells nobody.
func TestTracingOffCostsNothing(t *testing.T) {
	s := New(Config{})
	r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
	var req engine.Request
	n := testing.AllocsPerRun(100, func() {
		r2, end := s.tracer.request(r)
		if s.tracer.watch(r2.Context(), &req) != nil || req.Watch != nil || r2 != r {
			t.Error("something is traced")
		}
		end(200)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
