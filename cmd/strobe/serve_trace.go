package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// traces sets up what exports traces, nil when nobody wants them. OpenTelemetry's own variables count as they do
// everywhere: where to send them, headers, the name of the service, how many are sampled.
func (o *serveOptions) traces(ctx context.Context, log *slog.Logger) (*trace.TracerProvider, error) {
	env := func(name string) string {
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
	}
	to := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") // taken as it is
	if base := cmp.Or(o.otlp, os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")); base != "" && (o.otlp != "" || to == "") {
		to = strings.TrimRight(base, "/") + "/v1/traces"
	}
	off := strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none"
	if to == "" || o.otlp == "" && off {
		return nil, nil
	}
	u, err := url.Parse(to)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--otlp: %q is no address like http://localhost:4318", to)
	}
	if p := env("PROTOCOL"); o.otlp == "" && p != "" && p != "http/protobuf" {
		log.Warn("no traces: OTEL_EXPORTER_OTLP_PROTOCOL is not http/protobuf, port 4318 of most collectors", "it is", p)
		return nil, nil
	}
	c := &otlpClient{url: to, head: http.Header{}, log: log}
	for _, pair := range strings.Split(env("HEADERS"), ",") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			if v, err = url.PathUnescape(strings.TrimSpace(v)); err != nil {
				return nil, usagef("OTEL_EXPORTER_OTLP_HEADERS: the value of %s is not escaped as in an address", k)
			}
			c.head.Set(strings.TrimSpace(k), v)
		}
	}
	r, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "strobe"), attribute.String("service.version", buildVersion())),
		resource.WithFromEnv()) // comes last, so what it says counts
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	limits := trace.NewSpanLimits()
	limits.EventCountLimit = -1 // the server has its own for rounds
	log.Info("exporting traces", "to", u.Redacted())
	return trace.NewTracerProvider(trace.WithBatcher(c), trace.WithResource(r),
		trace.WithRawSpanLimits(limits)), nil
}

// otlpClient sends traces as OTLP over HTTP. The official client would bring gRPC along, and seven megabytes.
type otlpClient struct {
	url  string
	head http.Header
	log  *slog.Logger
	down atomic.Bool
}

func (c *otlpClient) Shutdown(context.Context) error { return nil }

// ExportSpans sends spans. Those that do not get through are lost, which is said once: traces must not disturb.
func (c *otlpClient) ExportSpans(ctx context.Context, spans []trace.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	err := c.send(ctx, otlp(spans))
	if was := c.down.Swap(err != nil); err != nil && !was {
		c.log.Warn("traces do not get through; they are lost until they do", "error", err)
	} else if err == nil && was {
		c.log.Info("traces get through again")
	}
	return nil
}

func (c *otlpClient) send(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // the standard's default
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for k, v := range c.head {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", req.URL.Redacted(), resp.Status)
	}
	return nil
}
