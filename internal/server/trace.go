package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"strobe/internal/engine"
)

// traceContext is the standard's way to say which trace a request belongs to: the header traceparent.
var traceContext propagation.TraceContext

// maxRounds bounds what a trace says of one generation. Later rounds are counted only.
const maxRounds = 512

// tracer traces requests; without a Tracer it does nothing.
type tracer struct{ trace.Tracer }

// request begins the span of a request, in the trace the client belongs to. The function it returns ends it.
// Without tracing both are as they were.
func (s tracer) request(r *http.Request) (*http.Request, func(status int)) {
	if s.Tracer == nil || isHealth(r) || r.URL.Path == "/metrics" || open(r) {
		return r, func(int) {}
	}
	ctx := traceContext.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := s.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
	r = r.WithContext(ctx)
	return r, func(status int) {
		_, path, _ := strings.Cut(r.Pattern, " ") // known now
		span.SetName(r.Method + " " + path)
		span.SetAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", path),
			attribute.Int("http.response.status_code", status))
		if status >= 500 {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// rounds is what a trace will say of a generation.
type rounds struct {
	began time.Time
	list  []engine.Round
	count int
}

// watch makes the engine tell of a request's rounds if they are traced. Else it returns nil.
func (s tracer) watch(ctx context.Context, req *engine.Request) *rounds {
	if s.Tracer == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	t := &rounds{began: time.Now()}
	req.Watch = func(r engine.Round) {
		if t.count++; len(t.list) < maxRounds {
			t.list = append(t.list, r)
		}
	}
	return t
}

// generation adds the phases of a generation that ended, as spans of their own.
func (s tracer) generation(ctx context.Context, model string, t *rounds, res *engine.Result) {
	request := trace.SpanFromContext(ctx)
	if !request.IsRecording() {
		return
	}
	request.SetAttributes(attribute.String("gen_ai.request.model", model),
		attribute.Int("gen_ai.usage.input_tokens", res.Prompt), attribute.Int("gen_ai.usage.output_tokens", res.Generated),
		attribute.Int("strobe.cached_tokens", res.Cached), attribute.String("strobe.end", res.Reason.String()))
	if t == nil {
		return
	}
	span := func(name string, from, to time.Duration, attrs ...attribute.KeyValue) {
		_, x := s.Start(ctx, name, trace.WithTimestamp(t.began.Add(from)), trace.WithAttributes(attrs...))
		defer x.End(trace.WithTimestamp(t.began.Add(to)))
		for _, r := range t.list {
			if (name == "prefill") != (r.Prompt > 0) || name == "queue" {
				continue
			}
			x.AddEvent("round", trace.WithTimestamp(r.Start.Add(r.Took)), trace.WithAttributes(
				attribute.Int("strobe.prompt_tokens", r.Prompt), attribute.Int("strobe.tokens", r.Tokens),
				attribute.Int("strobe.drafted", r.Guessed), attribute.Int("strobe.accepted", r.Accepted),
				attribute.Float64("strobe.draft_ms", ms(r.Draft)), attribute.Float64("strobe.verify_ms", ms(r.Verify)),
				attribute.Float64("strobe.round_ms", ms(r.Took)),
			))
		}
	}
	first := res.First
	if first == 0 {
		first = res.Total
	}
	span("queue", 0, res.Queued)
	if res.Slot < 0 {
		return // it never ran
	}
	span("prefill", res.Queued, first, attribute.Int("strobe.prompt_tokens", res.Prompt),
		attribute.Int("strobe.cached_tokens", res.Cached))
	if res.First > 0 {
		st := &res.Stats
		span("decode", first, res.Total, attribute.Int("strobe.tokens", res.Generated),
			attribute.Int("strobe.rounds", st.Rounds), attribute.Int("strobe.rounds_left_out", t.count-len(t.list)),
			attribute.Int("strobe.drafted", st.Guessed), attribute.Int("strobe.accepted", st.Accepted))
	}
}

// traceUpstream notes who answers a request.
func traceUpstream(ctx context.Context, model, replica string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("gen_ai.request.model", model))
		span.AddEvent("upstream answers", trace.WithAttributes(attribute.String("strobe.replica", replica)))
	}
}
