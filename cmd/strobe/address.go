package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// serverFlags say which server a command asks, and with which key.
type serverFlags struct {
	server, key, keyFile string
}

func (s *serverFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.server, "server", "http://127.0.0.1:8080", "address of the server")
	f.StringVar(&s.key, "api-key", "", "key that the server wants (also "+keyVariable+")")
	f.StringVar(&s.keyFile, "api-key-file", "", "file with that key")
}

// read checks the address, which may be the first argument, and finds the key.
func (s *serverFlags) read(args []string) (err error) {
	if len(args) > 0 {
		s.server = args[0]
	}
	if s.server, err = serverAddress(s.server); err != nil {
		return err
	}
	if s.keyFile != "" {
		keys, err := readKeys(s.keyFile)
		if err != nil {
			return err
		}
		s.key = keys[0]
	}
	s.key = cmp.Or(s.key, os.Getenv(keyVariable))
	return nil
}

// do sends a request with the key. The caller closes the answer.
func (s *serverFlags) do(client *http.Client, req *http.Request) (*http.Response, error) {
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, unreachable(s.server, err)
	}
	return resp, nil
}

// serverAddress is the address of a server as people write it: with or without http:// and /v1.
func serverAddress(s string) (string, error) {
	full := s
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", usagef("%q is no address; want one like http://127.0.0.1:8080", s)
	}
	return strings.TrimSuffix(strings.TrimRight(full, "/"), "/v1"), nil
}

// unreachable says in a sentence why no server at an address could be asked.
func unreachable(server string, err error) error {
	var name *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, windowsRefused):
		return fmt.Errorf("no server answers at %s; \"strobe serve\" starts one", server)
	case errors.As(err, &name):
		return fmt.Errorf("%s: there is no machine called %s", server, name.Name)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer in time", server)
	}
	// Without the method, the address once more and the system call.
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Errorf("%s: %w", server, err)
		}
		err = inner
	}
}

// What Windows says for ECONNREFUSED, EADDRINUSE and EADDRNOTAVAIL.
const (
	windowsRefused = syscall.Errno(10061)
	windowsInUse   = syscall.Errno(10048)
	windowsNotHere = syscall.Errno(10049)
)

// listen opens the address of --host and --port. An IPv4 address means no other one: Go takes 0.0.0.0 for the addresses
// of IPv6, too.
func listen(host string, port int) (net.Listener, error) {
	network := "tcp"
	if ip := net.ParseIP(host); ip != nil && ip.To4() != nil {
		network = "tcp4"
	}
	ln, err := net.Listen(network, net.JoinHostPort(host, strconv.Itoa(port)))
	var name *net.DNSError
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windowsInUse):
		return nil, fmt.Errorf("port %d of %s is in use, maybe by another \"strobe serve\"; give another with --port, 0 takes a free one",
			port, host)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("this user may not listen on port %d; give one above 1023 with --port", port)
	case errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, windowsNotHere):
		return nil, fmt.Errorf("--host %s: is no address of this machine; 0.0.0.0 stands for all of them", host)
	case errors.As(err, &name):
		return nil, fmt.Errorf("--host %s: there is no machine of that name", host)
	}
	return nil, fmt.Errorf("--host %s --port %d: %w", host, port, err)
}

// addresses are what a listener is reached by, this machine's own first.
func addresses(scheme string, ln net.Listener) []string {
	at := ln.Addr().(*net.TCPAddr)
	ips := []net.IP{at.IP}
	if at.IP.IsUnspecified() {
		ips = []net.IP{net.IPv4(127, 0, 0, 1)}
		all, _ := net.InterfaceAddrs() // those that are found
		for _, a := range all {
			n, ok := a.(*net.IPNet)
			if ok && n.IP.IsGlobalUnicast() && (n.IP.To4() != nil || at.IP.To4() == nil) {
				ips = append(ips, n.IP)
			}
		}
	}
	var urls []string
	for _, ip := range ips {
		urls = append(urls, scheme+"://"+net.JoinHostPort(ip.String(), strconv.Itoa(at.Port)))
	}
	return urls
}
