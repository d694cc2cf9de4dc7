package main

import (
	"slices"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: no file: \"x\"\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":1}
not JSON
{"Action":"pass","Package":"q","Elapsed":2.5}
{"Action":"skip","Package":"none"}
{"Action":"skip","Package":"q","Test":"TestC"}`
	var out strings.Builder
	got, err := report(strings.NewReader(events), &out)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"p TestA: no file: \"x\"\n", "q TestC: no reason given\n"}
	if !slices.Equal(got, want) {
		t.Errorf("skipped %q, want %q", got, want)
	}
	if s := out.String(); s != "    b_test.go:1: wrong\nFAIL\nnot JSON\nok  \tq\t2.500s\n?   \tnone\t[no test files]\n" {
		t.Errorf("shown: %q", s)
	}
}
