package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"strobe/internal/testkit"
)

// collector takes traces as any collector does.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
	names map[string]bool // of services
	posts int
}

func newCollector(t *testing.T) *collector {
	c := &collector{names: map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var data tracepb.TracesData
		if err == nil {
			err = proto.Unmarshal(body, &data)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("the collector got %s %s: %v", r.URL, r.Header, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.posts++
		for _, rs := range data.ResourceSpans {
			c.names[attr(rs.Resource.Attributes, "service.name").GetStringValue()] = true
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func attr(list []*commonpb.KeyValue, key string) *commonpb.AnyValue {
	for _, kv := range list {
		if kv.Key == key {
			return kv.Value
		}
	}
	return nil
}

// find returns the spans of a name.
func (c *collector) find(name string) (out []*tracepb.Span) {
	for _, s := range c.spans {
		if s.Name == name {
			out = append(out, s)
		}
	}
	return out
}

const traceID, parentID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

// TestTraces: a request through a front server is one trace, from the client's span to the rounds of the engine.
func TestTraces(t *testing.T) {
	c := newCollector(t)
	back, stopBack := serve(t, "--alias", "far", "--otlp", c.URL+"/") // the built-in pair, which drafts
	ready(t, back)
	t.Setenv("OTEL_SERVICE_NAME", "front")
	front, stopFront := serve(t, "--upstream", "far="+back, "--otlp", c.URL)
	ready(t, front)
	body := `{"model":"far","prompt":"package main\n\nimport (\n","max_tokens":64,"temperature":0,"ignore_eos":true}`
	status, v := ask(t, front+"/v1/completions", body, "Traceparent", "00-"+traceID+"-"+parentID+"-01")
	if status != http.StatusOK {
		t.Fatalf("%d %v", status, v)
	}
	for _, stop := range []func() (int, string){stopFront, stopBack} { // which sends what is left
		if code, log := stop(); code != exitOK {
			t.Fatalf("exit code %d: %s", code, log)
		}
	}
	if !c.names["front"] || !c.names["strobe"] && len(c.names) != 1 {
		t.Errorf("services %v", c.names)
	}
	id := func(b []byte) string { return hex.EncodeToString(b) }
	requests := c.find("POST /v1/completions")
	if len(requests) != 2 {
		t.Fatalf("%d spans of requests among %v", len(requests), c.spans)
	}
	outer, inner := requests[0], requests[1]
	if id(outer.ParentSpanId) != parentID {
		outer, inner = inner, outer
	}
	if id(outer.ParentSpanId) != parentID || id(inner.ParentSpanId) != id(outer.SpanId) {
		t.Errorf("parents are %x and %x; spans %x and %x", outer.ParentSpanId, inner.ParentSpanId, outer.SpanId, inner.SpanId)
	}
	if n := attr(inner.Attributes, "gen_ai.usage.output_tokens").GetIntValue(); n != 64 {
		t.Errorf("%d tokens", n)
	}
	var tokens, accepted, drafted int64
	last := inner.StartTimeUnixNano
	for _, name := range []string{"queue", "prefill", "decode"} {
		spans := c.find(name)
		if len(spans) != 1 || id(spans[0].ParentSpanId) != id(inner.SpanId) || id(spans[0].TraceId) != traceID {
			t.Fatalf("%s: %v", name, spans)
		}
		s := spans[0]
		if s.StartTimeUnixNano < last || s.EndTimeUnixNano < s.StartTimeUnixNano ||
			s.EndTimeUnixNano > inner.EndTimeUnixNano {
			t.Errorf("%s is not inside the request, after what came before", name)
		}
		last = s.EndTimeUnixNano
		if name != "queue" && len(s.Events) == 0 {
			t.Errorf("%s has no rounds", name)
		}
		for _, e := range s.Events {
			tokens += attr(e.Attributes, "strobe.tokens").GetIntValue()
			drafted += attr(e.Attributes, "strobe.drafted").GetIntValue()
			accepted += attr(e.Attributes, "strobe.accepted").GetIntValue()
			if attr(e.Attributes, "strobe.verify_ms").GetDoubleValue() <= 0 {
				t.Errorf("%s: a round without a pass: %v", name, e)
			}
		}
	}
	decode := c.find("decode")[0]
	if tokens != 64 || drafted == 0 || drafted != attr(decode.Attributes, "strobe.drafted").GetIntValue() ||
		accepted != attr(decode.Attributes, "strobe.accepted").GetIntValue() {
		t.Errorf("rounds have %d tokens, %d drafted, %d accepted; %v", tokens, drafted, accepted, decode.Attributes)
	}
	for _, s := range c.spans {
		if strings.Contains(s.Name, "health") || strings.Contains(fmt.Sprint(s), "package main") {
			t.Errorf("a span says too much: %v", s)
		}
	}
}

// TestTracesOff: nobody is told anything unless that was asked for, and a collector that is not there disturbs nobody.
func TestTracesOff(t *testing.T) {
	c := newCollector(t)
	model := testkit.Golden(t, "qwen3/model.gguf")
	body := `{"prompt":"x","max_tokens":2}`
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	for _, off := range [][2]string{{"OTEL_SDK_DISABLED", "true"}, {"OTEL_TRACES_EXPORTER", "none"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}} {
		t.Run(off[0], func(t *testing.T) {
			t.Setenv(off[0], off[1])
			url, stop := serve(t, "-m", model)
			ready(t, url)
			ask(t, url+"/v1/completions", body)
			stop()
			if c.posts != 0 {
				t.Error("traces were sent")
			}
		})
	}
	c.Close()
	url, stop := serve(t, "-m", model) // with the variable
	ready(t, url)
	if status, v := ask(t, url+"/v1/completions", body); status != http.StatusOK {
		t.Errorf("%d %v", status, v)
	}
	if code, log := stop(); code != exitOK || !strings.Contains(log, "traces do not get through") {
		t.Errorf("exit code %d: %s", code, log)
	}
	if code := run(t.Context(), []string{"serve", "-m", model, "--otlp", "localhost"}, nil, io.Discard,
		io.Discard); code != exitUsage {
		t.Errorf("a wrong address: exit code %d", code)
	}
}

// oracle is a client of OpenTelemetry's exporter that keeps what it is to send.
type oracle struct{ spans []*tracepb.ResourceSpans }

func (o *oracle) Start(context.Context) error { return nil }
func (o *oracle) Stop(context.Context) error  { return nil }
func (o *oracle) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	o.spans = spans
	return nil
}

// TestOTLP: spans are sent as OpenTelemetry's exporter sends them.
func TestOTLP(t *testing.T) {
	record := tracetest.NewSpanRecorder()
	limits := sdktrace.NewSpanLimits()
	limits.AttributeCountLimit, limits.EventCountLimit, limits.AttributePerEventCountLimit = 5, 3, 2
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(record), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithResource(resource.NewWithAttributes("https://example.org/schema", attribute.String("service.name", "x"),
			attribute.String("empty", ""))))
	tracer := provider.Tracer("strobe", trace.WithInstrumentationVersion("v1"))
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	far := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3},
		TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true})
	ctx, outer := tracer.Start(trace.ContextWithSpanContext(t.Context(), far), "GET /",
		trace.WithSpanKind(trace.SpanKindServer))
	for _, kind := range []trace.SpanKind{trace.SpanKindInternal, trace.SpanKindClient, trace.SpanKindUnspecified} {
		_, inner := tracer.Start(ctx, "", trace.WithSpanKind(kind), trace.WithTimestamp(time.Unix(1, 2)))
		inner.SetAttributes(attribute.Int("zero", 0), attribute.Int("less", -1), attribute.Bool("no", false),
			attribute.Bool("yes", true), attribute.Float64("half", 0.5), attribute.String("too many", "é"))
		for range 5 {
			inner.AddEvent("round", trace.WithAttributes(attribute.String("a", strings.Repeat("a", 200)),
				attribute.Float64("b", 0), attribute.Int("c", math.MaxInt64)))
		}
		inner.SetStatus(codes.Error, "why")
		inner.End(trace.WithTimestamp(time.Unix(3, 4)))
	}
	outer.SetStatus(codes.Ok, "")
	outer.End()
	_, first := tracer.Start(t.Context(), "without a parent")
	first.End(trace.WithTimestamp(time.Unix(-1, 0)))

	o := &oracle{}
	exporter, err := otlptrace.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := exporter.ExportSpans(t.Context(), record.Ended()); err != nil {
		t.Fatal(err)
	}
	var got tracepb.TracesData
	if err := proto.Unmarshal(otlp(record.Ended()), &got); err != nil {
		t.Fatal(err)
	}
	if want := (&tracepb.TracesData{ResourceSpans: o.spans}); !proto.Equal(&got, want) {
		t.Errorf("got %v\nwant %v", &got, want)
	}
}
