package main

import (
	"encoding/binary"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
)

// wireMessage is a message of protobuf in the making. The library for protobuf would add a megabyte and a half to the
// program for this one message. As in the library, fields that are zero are left out.
type wireMessage []byte

// Types of fields on the wire.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

func (m *wireMessage) key(field, wire uint64) { *m = binary.AppendUvarint(*m, field<<3|wire) }

func (m *wireMessage) bytes(field uint64, b []byte) {
	m.key(field, wireBytes)
	*m = binary.AppendUvarint(*m, uint64(len(b)))
	*m = append(*m, b...)
}

func (m *wireMessage) text(field uint64, s string) {
	if s != "" {
		m.bytes(field, []byte(s))
	}
}

func (m *wireMessage) number(field, v uint64) {
	if v != 0 {
		m.key(field, wireVarint)
		*m = binary.AppendUvarint(*m, v)
	}
}

func (m *wireMessage) time(field uint64, t time.Time) {
	m.key(field, wireFixed64)
	*m = binary.LittleEndian.AppendUint64(*m, uint64(max(0, t.UnixNano())))
}

func (m *wireMessage) attributes(field uint64, list []attribute.KeyValue) {
	for _, kv := range list {
		var value, pair wireMessage
		switch v := kv.Value; v.Type() { // one of several fields, so a zero is written
		case attribute.BOOL:
			value.key(2, wireVarint)
			set := uint64(0)
			if v.AsBool() {
				set = 1
			}
			value = binary.AppendUvarint(value, set)
		case attribute.INT64:
			value.key(3, wireVarint)
			value = binary.AppendUvarint(value, uint64(v.AsInt64()))
		case attribute.FLOAT64:
			value.key(4, wireFixed64)
			value = binary.LittleEndian.AppendUint64(value, math.Float64bits(v.AsFloat64()))
		default: // lists do not occur
			value.bytes(1, []byte(v.String()))
		}
		pair.text(1, string(kv.Key))
		pair.bytes(2, value)
		m.bytes(field, pair)
	}
}

// otlp is the request of OTLP that has these spans: ExportTraceServiceRequest. One provider and one tracer wrote them,
// so they have a resource and a scope in common.
func otlp(spans []trace.ReadOnlySpan) []byte {
	var request, ofResource, resource, ofScope, scope wireMessage
	resource.attributes(1, spans[0].Resource().Attributes())
	ofResource.bytes(1, resource)
	scope.text(1, spans[0].InstrumentationScope().Name)
	scope.text(2, spans[0].InstrumentationScope().Version)
	ofScope.bytes(1, scope)
	for _, s := range spans {
		ofScope.bytes(2, otlpSpan(s))
	}
	ofResource.bytes(2, ofScope)
	ofResource.text(3, spans[0].Resource().SchemaURL())
	request.bytes(1, ofResource)
	return request
}

func otlpSpan(s trace.ReadOnlySpan) []byte {
	var span, status wireMessage
	context, parent := s.SpanContext(), s.Parent()
	traceID, spanID, parentID := context.TraceID(), context.SpanID(), parent.SpanID()
	span.bytes(1, traceID[:])
	span.bytes(2, spanID[:])
	span.text(3, context.TraceState().String())
	if parentID.IsValid() {
		span.bytes(4, parentID[:])
	}
	span.text(5, s.Name())
	span.number(6, uint64(s.SpanKind())) // the numbers are the same
	span.time(7, s.StartTime())
	span.time(8, s.EndTime())
	span.attributes(9, s.Attributes())
	span.number(10, uint64(s.DroppedAttributes()))
	for _, e := range s.Events() {
		var event wireMessage
		event.time(1, e.Time)
		event.text(2, e.Name)
		event.attributes(3, e.Attributes)
		event.number(4, uint64(e.DroppedAttributeCount))
		span.bytes(11, event)
	}
	span.number(12, uint64(s.DroppedEvents()))
	status.text(2, s.Status().Description)
	status.number(3, map[codes.Code]uint64{codes.Ok: 1, codes.Error: 2}[s.Status().Code])
	span.bytes(15, status)
	// The trace's flags, one that says that it is known where the parent ran, and whether that was elsewhere.
	flags := uint32(context.TraceFlags()) | 0x100
	if parent.IsRemote() {
		flags |= 0x200
	}
	span.key(16, wireFixed32)
	span = binary.LittleEndian.AppendUint32(span, flags)
	return span
}
