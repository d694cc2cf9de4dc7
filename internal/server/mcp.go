package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"
)

// The page may use tools of MCP servers (Model Context Protocol, over streamable HTTP). Its policy keeps it from asking
// other servers, so its requests go through this one, to the servers that Config.MCP names and to no other address. The
// protocol itself is the page's: here requests and answers are passed on as they are.

// MCPServer is an MCP server whose tools the page may use.
type MCPServer struct {
	Name string // what the page calls it
	URL  string // of its endpoint
	Key  string // sent to it as a bearer token, "" for none
}

// Limits of a call of an MCP server.
const (
	mcpRequest = 1 << 20         // bytes of a request
	mcpAnswer  = 4 << 20         // bytes of an answer
	mcpTime    = 2 * time.Minute // for all of it: tools may take long
)

// mcpHeaders of a request go to the MCP server. The others are not its business, above all this server's key.
var mcpHeaders = []string{"Accept", "Content-Type", "Mcp-Protocol-Version", "Mcp-Session-Id"}

// mcpClient follows no redirect: the address that was named is the only one.
var mcpClient = &http.Client{
	Transport: &http.Transport{
		DialContext:            (&net.Dialer{Timeout: fetchTime}).DialContext,
		TLSHandshakeTimeout:    fetchTime,
		MaxConnsPerHost:        16, // a page that asks all the time does not open connections without end
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 1 << 16,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Check reports what is wrong with the description of a server.
func (m MCPServer) Check() error {
	u, err := url.Parse(m.URL)
	switch {
	case m.Name == "" || url.PathEscape(m.Name) != m.Name || m.Name == "." || m.Name == "..":
		return fmt.Errorf("mcp %q: a name has letters, digits, - and _ only", m.Name)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("mcp %s: want an address like http://localhost:3000/mcp", m.Name)
	case u.User != nil:
		return fmt.Errorf("mcp %s: an address has no user; give the key apart", m.Name)
	}
	return nil
}

// mcpNames lists the MCP servers by their names.
func (s *core) mcpNames() []string {
	names := []string{}
	for _, m := range s.cfg.MCP {
		names = append(names, m.Name)
	}
	return names
}

// mcp passes a request of the page on to an MCP server, and its answer back as it comes.
func (s *core) mcp(w http.ResponseWriter, r *http.Request) (any, error) {
	var to *MCPServer
	for i := range s.cfg.MCP {
		if s.cfg.MCP[i].Name == r.PathValue("name") {
			to = &s.cfg.MCP[i]
		}
	}
	if to == nil {
		return nil, &apiError{Status: http.StatusNotFound, Type: "not_found_error",
			Message: fmt.Sprintf("there is no MCP server %q; strobe serve --mcp NAME=URL adds one",
				cutText(r.PathValue("name"), maxLogged))}
	}
	logOf(r).add(slog.String("mcp", to.Name))
	ctx, cancel := context.WithTimeout(r.Context(), mcpTime)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	if len(body) > mcpRequest {
		return nil, &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
			Message: fmt.Sprintf("a call of an MCP server has at most %d bytes", mcpRequest)}
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, to.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, h := range mcpHeaders {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	if to.Key != "" {
		req.Header.Set("Authorization", "Bearer "+to.Key)
	}
	resp, err := mcpClient.Do(req)
	if err != nil {
		return nil, mcpFailure(r, to, err)
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	passes := kind == "application/json" || kind == "text/event-stream"
	switch {
	case resp.StatusCode == http.StatusNotFound && req.Header.Get("Mcp-Session-Id") != "":
		return nil, &apiError{Status: http.StatusNotFound, Type: "not_found_error", Code: "mcp_session",
			Message: fmt.Sprintf("the MCP server %s does not know this session any more", to.Name)}
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return nil, badUpstream(fmt.Sprintf("the MCP server %s wants another key; see --mcp-key", to.Name))
	case resp.StatusCode/100 != 2:
		return nil, badUpstream(fmt.Sprintf("the MCP server %s answers with status %d", to.Name, resp.StatusCode))
	case !passes && resp.StatusCode == http.StatusOK && r.Method == http.MethodPost:
		return nil, badUpstream(fmt.Sprintf("the MCP server %s answers with neither JSON nor events", to.Name))
	}
	h := w.Header()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		h.Set("Mcp-Session-Id", id)
	}
	h.Set("Cache-Control", "no-store")
	if !passes { // accepted, or the end of a session: nothing to say
		w.WriteHeader(http.StatusAccepted)
		return nil, nil
	}
	// What comes from elsewhere is data under this server's address: it is never shown as a page.
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	w.WriteHeader(resp.StatusCode)
	return nil, s.copyMCP(w, r, resp.Body)
}

// copyMCP passes an answer on as it comes. One that is too long or breaks off is cut, so that it is not taken for
// complete.
func (s *core) copyMCP(w http.ResponseWriter, r *http.Request, from io.Reader) error {
	rc := http.NewResponseController(w)
	_ = rc.Flush() // events may come later
	buf := make([]byte, 32<<10)
	for left := mcpAnswer; ; {
		n, err := from.Read(buf)
		if n > left {
			logOf(r).fail(badUpstream(fmt.Sprintf("the MCP server's answer has more than %d bytes", mcpAnswer)))
			panic(http.ErrAbortHandler)
		}
		if left -= n; n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return nil // the client is gone
			}
			_ = rc.Flush()
		}
		if err == io.EOF || r.Context().Err() != nil {
			return nil
		}
		if err != nil {
			logOf(r).fail(badUpstream("the MCP server's answer broke off"))
			panic(http.ErrAbortHandler)
		}
	}
}

// mcpFailure says why an MCP server could not be asked, without its address.
func mcpFailure(r *http.Request, to *MCPServer, err error) error {
	if r.Context().Err() != nil {
		return context.Cause(r.Context())
	}
	e := badUpstream(fmt.Sprintf("the MCP server %s cannot be reached", to.Name))
	e.Log = err.Error()
	return e
}
