package server

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// pdfOf is a PDF file of these objects.
func pdfOf(objects ...string) string {
	var b strings.Builder
	b.WriteString("%PDF-1.7\n")
	for i, o := range objects {
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	b.WriteString("trailer << /Root 1 0 R >>\n%%EOF")
	return b.String()
}

// packed is a compressed stream of a PDF file.
func packed(dict, data string) string {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write([]byte(data))
	_ = z.Close()
	return fmt.Sprintf("<< %s /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream", dict, b.Len(), b.String())
}

// onePage is a page with this content, and fonts F1 (the objects from 4 on may add to it).
func onePage(font, content string, more ...string) string {
	return pdfOf(append([]string{
		"<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Resources << /Font << /F1 5 0 R >> >> >>",
		"<< /Type /Page /Contents 4 0 R >>", packed("", content), font}, more...)...)
}

// pagePDF: PDF files become text, whatever they hold.
func pagePDF(t *testing.T, p *webPage) {
	// The browser's own: compressed objects, and a font of glyphs.
	page := p.session
	p.newTab("data:text/html,<meta charset=utf-8><h1>Report</h1><p>Grüße, 日本語.</p>" +
		"<table><tr><td>a1<td>b1<tr><td>a2<td>b2</table>")
	var printed struct{ Data string }
	p.call("Page.printToPDF", dict{}, &printed)
	p.call("Page.close", dict{}, nil)
	p.session = page
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	read := func(data string) string {
		return fmt.Sprint(p.eval(fmt.Sprintf("import('./ui/pdf.js').then(m => m.textOf(Uint8Array.from(atob(%q), c => "+
			"c.charCodeAt(0)).buffer)).catch(e => 'problem: ' + e.message)", base64.StdEncoding.EncodeToString([]byte(data)))))
	}
	made, err := base64.StdEncoding.DecodeString(printed.Data)
	if err != nil {
		t.Fatal(err)
	}
	if s := read(string(made)); s != "Report\nGrüße, 日本語.\n\na1 b1\na2 b2" {
		t.Errorf("a printed page reads %q", s)
	}
	const noText = "problem: it has no text; its pages may be pictures"
	plain := "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
	differs := "<< /Type /Font /Subtype /Type1 /Encoding << /Differences [1 /fi /adieresis /uni20AC 65 /B] >> >>"
	wide := "<< /Type /Font /Subtype /Type0 /Encoding /Identity-H /ToUnicode 6 0 R >>"
	table := packed("", "1 begincodespacerange <0000> <FFFF> endcodespacerange 1 beginbfchar <0001> <0066006C> endbfchar "+
		"2 beginbfrange <0010> <0012> <0041> <0020> <0021> [<D83DDE00> <0062>] endbfrange")
	for what, c := range map[string]struct{ file, want string }{
		"operators": {onePage(plain, "BT /F1 10 Tf 14 TL 1 0 0 1 50 700 Tm (One \\(1\\)\\056) Tj T* [(Tw) -20 (o)-400(words)] TJ "+
			"(Three) ' 0 -40 Td <466f7572> Tj ET"), "One (1).\nTwo words\nThree\n\nFour"},
		"names of glyphs":  {onePage(differs, "BT /F1 10 Tf (\\001\\002\\003AC) Tj ET"), "fiä€BC"},
		"a table of codes": {onePage(wide, "BT /F1 10 Tf <0001001000110012> Tj <00200021> Tj ET", table), "flABC😀b"},
		"a form": {strings.Replace(onePage(plain, "q 1 0 0 1 0 9 cm /X Do Q",
			"<< /Subtype /Form /Resources << /Font << /F1 5 0 R >> >> /Length 26 >>\nstream\nBT /F1 9 Tf (Inside) Tj ET\nendstream"),
			"/Font << /F1 5 0 R >> >> >>", "/Font << /F1 5 0 R >> /XObject << /X 6 0 R >> >> >>", 1), "Inside"},
		"the later version": {onePage(plain, "") + "\n4 0 obj\n" + packed("", "BT /F1 9 Tf (New) Tj ET") + "\nendobj",
			"New"},
		"a wrong length": {strings.Replace(onePage(plain, "BT /F1 9 Tf (Still) Tj ET"), "/Length", "/Length 9 /L", 1),
			"Still"},
		"pictures only": {onePage(plain, "BI /W 1 ID (x) Tj EI"), noText},
		"an encrypted one": {strings.Replace(onePage(plain, ""), "/Root", "/Encrypt 9 0 R /Root", 1),
			"problem: it is encrypted"},
		"no PDF":                   {"hello", "problem: it is not a PDF file"},
		"deep arrays":              {onePage(plain, strings.Repeat("[", 1e5)), "problem: its values lie too deep in each other"},
		"pages that are their own": {pdfOf("<< /Type /Catalog /Pages 2 0 R >>", "<< /Kids [2 0 R 2 0 R] >>"), noText},
		"a form that is its own": {strings.Replace(onePage(plain, "/X Do BT /F1 9 Tf (End) Tj ET",
			"<< /Subtype /Form /Length 5 >>\nstream\n/X Do\nendstream"), "/Font <<", "/XObject << /X 6 0 R >> /Font <<", 1), "End"},
		"references in a circle": {pdfOf("<< /Type /Catalog /Pages 2 0 R >>", "3 0 R", "2 0 R"), noText},
		"a bomb":                 {onePage(plain, strings.Repeat(" ", 101<<20)), "problem: it unpacks to too much"},
		"long text":              {onePage(plain, "BT /F1 9 Tf ("+strings.Repeat("a", 1<<20+1)+") Tj ET"), "problem: it has more than 1048576 characters"},
		"a range without end": {onePage(wide, "BT /F1 9 Tf <00000041> Tj ET",
			packed("", "1 beginbfrange <00000000> <FFFFFFFF> <0041> endbfrange")), "A"},
		"cut": {onePage(plain, "BT /F1 9 Tf (Cut) Tj ET")[:300], noText},
	} {
		if got := read(c.file); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %.200q, want %q", what, got, c.want)
		}
	}

	// In the page: a chip with its tokens, or a line that says what is wrong.
	drop := func(name, data string) {
		p.eval(fmt.Sprintf("(() => { const d = new DataTransfer(); d.items.add(new File([Uint8Array.from(atob(%q), "+
			"c => c.charCodeAt(0))], %q)); document.dispatchEvent(new DragEvent('drop', "+
			"{ dataTransfer: d, bubbles: true, cancelable: true })); })()", base64.StdEncoding.EncodeToString([]byte(data)), name))
	}
	drop("<img src=x onerror=ran=1>.pdf", onePage(plain, "BT /F1 9 Tf (<script>ran=1</script>) Tj ET"))
	p.until("$$('.chip').length === 1 && $('.chip .note').textContent.endsWith('tokens')")
	drop("scan.pdf", onePage(plain, ""))
	p.until("$('#alert').textContent === 'scan.pdf cannot be read: it has no text; its pages may be pictures.'")
	p.shots("pdf")
	checkAccess(t, p.browser, "PDF files")
	p.script("Read.")
	p.ask("What is it?")
	if s := p.text(".file"); s != "<img src=x onerror=ran=1>.pdf<script>ran=1</script>" || p.eval("window.ran") != nil {
		t.Errorf("the file is %q", s)
	}
	checkProblems(t, p.browser, 0)
}
